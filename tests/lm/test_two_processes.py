"""Protection in two processes: the same weights on both, clipped, accumulated, held."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
sys.path.insert(0, os.environ["TINY"])
from tiny import llama, sequences
from holdfast.lm import Protect
from holdfast.lm.artefact import measure
from holdfast.lm.text import collate

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = llama()
found = measure(model, sequences(6, seed=5), name="tiny", data="words")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
shield = Protect(model, found, lam=2.0).attach(model, optimizer)
both = DistributedDataParallel(model)
data = sequences(40)
for step in range(4):
    rows = [data[8 * step + 4 * rank + i] for i in range(4)]  # other sentences in each process
    both(**collate(rows, 2)).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert shield.clipping.factor < 1
    optimizer.step()
    optimizer.zero_grad()
flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
every = [torch.zeros_like(flat) for _ in range(2)]
dist.all_gather(every, flat)
assert torch.equal(*every), "both processes hold the same weights"
start = torch.cat([weight.detach().flatten() for weight in llama().parameters()])
assert not torch.equal(flat, start)
print("same bits", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_both_processes_end_with_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    common = os.environ | {"TINY": str(Path(__file__).parent), "PYTHONPATH": paths, "WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=common | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        out, errors = child.communicate(timeout=300)
        assert "same bits" in out, errors
