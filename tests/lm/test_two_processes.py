"""Protection in two processes: replicated weights (DDP) and sharded weights (FSDP2)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.paths import ROOT, TESTS
from helpers.tiny import llama, pairs, saved, sequences

from holdfast.lm.artefact import measure
from holdfast.models.sources import load_lm

COPIES = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, os.environ["TESTS"])
from helpers.tiny import llama, sequences
from holdfast.lm import Protect
from holdfast.lm.artefact import measure
from holdfast.lm.text import collate

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = llama()
found = measure(model, sequences(6, seed=5), name="tiny", data="words")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
shield = Protect(model, found, lam=2.0).attach(model, optimizer, clip=0.5)
both = DistributedDataParallel(model)
data = sequences(40)
for step in range(4):
    rows = [data[8 * step + 4 * rank + i] for i in range(4)]  # different data in each process
    both(**collate(rows, 2)).loss.backward()
    optimizer.step()
    assert shield.clipped < 1
    optimizer.zero_grad()
flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
every = [torch.zeros_like(flat) for _ in range(2)]
dist.all_gather(every, flat)
assert torch.equal(*every), "the weights are equal in both processes"
start = torch.cat([weight.detach().flatten() for weight in llama().parameters()])
assert not torch.equal(flat, start)
print("passed", flush=True)
os._exit(0)  # threads of gloo sometimes abort a process that ends in the usual way
"""

SHARDS = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
sys.path.insert(0, os.environ["TESTS"])
from helpers.tiny import llama, sequences
from holdfast.errors import HoldfastError
from holdfast.lm import Protect
from holdfast.lm.artefact import measure
from holdfast.lm.shards import sharded, whole
from holdfast.lm.text import collate

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, mesh, data = dist.get_rank(), init_device_mesh("cpu", (2,)), sequences(40)

def train(shards, **how):
    model = llama()
    found = measure(model, sequences(6, seed=5), name="tiny", data="words")
    shield = Protect(model, found, **how)
    if shards:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    shield.attach(model, optimizer, clip=0.5)
    for step in range(4):
        halves = [[data[8 * step + 4 * half + i] for i in range(4)] for half in range(2)]
        for rows in [halves[rank]] if shards else halves:
            loss = model(**collate(rows, 2)).loss
            (loss if shards else loss / 2).backward()
        optimizer.step()
        assert shield.clipped < 1
        optimizer.zero_grad()
    assert all(sharded(weight) == shards for weight in model.parameters())
    return torch.cat([whole(weight.detach()).flatten() for weight in model.parameters()]), shield, model

for how in ({"lam": 2.0}, {"lam": 0.0}, {"lam": 2.0, "step": "lr"}, {"budget": 1e-4}):
    (cut, shield, model), (one, alone, _) = train(True, **how), train(False, **how)
    torch.testing.assert_close(cut, one, rtol=1e-5, atol=1e-6)
    assert abs(shield.spent - alone.spent) <= 1e-5 * alone.spent

# The anchor of sharded weights is saved in full and restored.
out = Path(os.environ["OUT"])
(out / "checkpoint-4").mkdir(parents=True, exist_ok=True)
args = SimpleNamespace(output_dir=str(out), gradient_accumulation_steps=1, world_size=2, max_grad_norm=0.0)
args.average_tokens_across_devices, args.save_strategy = True, "steps"
shield.on_save(args, SimpleNamespace(global_step=4, is_world_process_zero=rank == 0), None)
dist.barrier()
other = llama()
again = Protect(other, measure(other, sequences(6, seed=5), name="tiny", data="words"), budget=1e-4)
with torch.no_grad():
    for weight in other.parameters():
        weight.zero_()  # simulates a loaded checkpoint
fully_shard(other, mesh=mesh)
optimizer = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.0)
again.on_train_begin(args, SimpleNamespace(global_step=4), None, model=other, optimizer=optimizer)
start = dict(llama().named_parameters())
assert all(torch.equal(whole(value), start[name]) for name, value in again.anchor.items())
assert again.lam == shield.lam

try:
    shield.lam, shield.mode = 1.0, "loss"
    shield.attach(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0))
    raise AssertionError("the loss form on shards must be refused")
except HoldfastError as error:
    assert "sharded" in str(error)
print("passed", flush=True)
os._exit(0)  # threads of gloo sometimes abort a process that ends in the usual way
"""


LOSS = """
import os, sys
from functools import partial
import torch
from transformers import Trainer, TrainingArguments
sys.path.insert(0, os.environ["TESTS"])
from helpers.tiny import llama, sequences
from holdfast.lm import Protect
from holdfast.lm.artefact import measure
from holdfast.lm.text import collate

torch.set_num_threads(1)
world, model = int(os.environ["WORLD_SIZE"]), llama()
shield = Protect(model, measure(model, sequences(6, seed=5), name="tiny", data="words"), 5.0, mode="loss")
args = TrainingArguments(
    os.environ["OUT"], max_steps=4, per_device_train_batch_size=4 // world, gradient_accumulation_steps=2,
    learning_rate=0.05, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0, save_strategy="no",
    report_to=[], use_cpu=True, remove_unused_columns=False,
)
trainer = Trainer(
    model, args, data_collator=partial(collate, pad=2), train_dataset=list(sequences(40)), callbacks=[shield]
)
trainer.train()
flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
print("weights", flat.double().norm().item(), flat.double().sum().item(), flat.abs().max().item(), flush=True)
os._exit(0)  # threads of gloo sometimes abort a process that ends in the usual way
"""


def together(arguments: list[str], extra: dict[str, str], world: int = 2) -> list[str]:
    """Run a script in `world` processes and return their output; fail if one of them fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    common = os.environ | extra | {"PYTHONPATH": paths, "WORLD_SIZE": str(world)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = []
    for child in children:
        out, errors = child.communicate(timeout=300)
        assert child.returncode == 0, errors
        said.append(out)
    return said


@pytest.mark.slow
@pytest.mark.parametrize("script", [COPIES, SHARDS], ids=["DDP", "FSDP2"])
def test_protection(script: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    extra = {"TESTS": str(TESTS), "OUT": str(tmp_path)}
    for out in together([str(tmp_path / "train.py")], extra):
        assert "passed" in out


@pytest.mark.slow
def test_the_command_under_a_launcher(tmp_path: Path) -> None:
    """`accelerate launch -m holdfast lm finetune` saves one trained model."""
    model, data = saved(tmp_path / "tiny"), tmp_path / "new.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": p.prompt, "answer": p.answer}) for p in pairs(12, 3)))
    measure(llama(), sequences(6, seed=5), name="tiny", data="words").save(tmp_path / "imp")
    how = [
        "--protect",
        str(tmp_path / "imp"),
        "--lam",
        "0.001",
        "--lr",
        "0.01",
        "--steps",
        "3",
        "--threads",
        "1",
    ]
    call = ["-m", "holdfast", "lm", "finetune", "--model", str(model), "--data", str(data), *how]
    first, second = together([*call, "--out", str(tmp_path / "tuned")], {})
    assert "model: " in first
    assert "model: " not in second
    tuned, _ = load_lm(str(tmp_path / "tuned" / "model"))
    start = llama().state_dict()
    assert any(not torch.equal(value, start[name]) for name, value in tuned.state_dict().items())


@pytest.mark.slow
def test_the_loss_form_is_as_strong_in_two_processes_as_in_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOSS)
    extra = {"TESTS": str(TESTS), "OUT": str(tmp_path)}
    found = []
    for world in (1, 2):
        out = together([str(tmp_path / "train.py")], extra, world)[0]
        line = next(line for line in out.splitlines() if line.startswith("weights"))
        found.append([float(number) for number in line.split()[1:]])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
