"""Two processes give the same numbers as one, with the real launcher and gloo.

`accelerate launch --cpu --num_processes 2` starts a single process unless MPI is used (accelerate 1.15
passes it to its simple launcher). With `--multi_gpu` it uses torchrun, and `Accelerator(cpu=True)` or
ACCELERATE_USE_CPU then selects gloo. The script asserts the number of processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.paths import ROOT, TESTS
from safetensors.torch import load_file

from holdfast.methods import METHODS

SCRIPT = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from dataclasses import replace
import torch
torch.set_num_threads(1)
from accelerate import Accelerator
from safetensors.torch import save_file
from helpers.toys import class_stream, domain_stream, small
from holdfast import distributed
from holdfast import importance
from holdfast.maths import params as P
from holdfast.data.objective import objective
from holdfast.data.tasks import Split
from holdfast.learning.fit import fit
from holdfast.methods.base import Training
from holdfast.models import build_classifier

accelerator = Accelerator(cpu=True)
out, seen, variant = sys.argv[1], [], sys.argv[3]

def watched(model, batch):
    real = batch.labels != -100
    lengths = batch.attention_mask.sum(1)
    for row, n, one in zip(batch.input_ids.tolist(), lengths.tolist(), real.tolist()):
        if one:
            seen.append(tuple(row[:n]))
    return Training.forward(model, batch)

found = {{}}
cases = (("even", class_stream(), 24), ("odd", class_stream(), 17), ("weighted", domain_stream(), 19))
for name, stream, size in cases:
    task = stream.tasks[0]
    order = sorted(range(24), key=lambda i: task.train.labels[i])  # so that the classes differ in size
    kept = order[:size]
    task = replace(task, train=Split.of([(task.train.texts[i], task.train.labels[i]) for i in kept]))
    if variant == "uneven valid":  # 17 in batches of 16: one process has no sample in the last batch
        task = replace(task, valid=Split(task.valid.texts * 2, task.valid.labels * 2))
        task = replace(task, valid=Split(task.valid.texts[:17], task.valid.labels[:17]))
    model = build_classifier({model!r}, small())
    model.dropout.p = 0.0
    model.head.add(task.labels)
    model.head.teach(task.labels)
    labels = model.head.labels
    data = {{}}
    for part in ("train", "valid"):
        loss = objective(stream.scenario, task, part, rows=labels, seen=labels)
        data[part] = model.encode(getattr(task, part), loss)
    seen.clear()
    result = fit(
        model, Training(3e-3, forward=watched), data["train"], data["valid"], small(epochs=3, patience=9),
        seed=4, accelerator=accelerator,
    )
    taken = [None] * distributed.processes()
    if distributed.processes() > 1:
        torch.distributed.all_gather_object(taken, list(seen))
    else:
        taken = [list(seen)]
    every = sorted(tokens for part in taken for tokens in part)
    expected = sorted(tuple(tokens) for tokens in data["train"].tokens for _ in range(3))
    assert every == expected, "every sample once per epoch, over all processes"
    found[f"{{name}}/history"] = torch.tensor(
        [[epoch["task"], epoch["valid"]] for epoch in result.history], dtype=torch.float64
    )
    with torch.no_grad():  # importance is compared at equal weights
        generator = torch.Generator().manual_seed(1)
        for weight in P.trainable(model).values():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    if variant != "with loss":
        data["train"] = replace(data["train"], objective=None)
    for kind, estimate in (("mas", importance.mas), ("fisher", importance.fisher)):
        for key, value in estimate(model, data["train"], batch_size=8).items():
            found[f"{{name}}/{{kind}}/{{key}}"] = value.contiguous()
if accelerator.is_main_process:
    save_file(found, out)
assert distributed.processes() == int(sys.argv[2])
accelerator.end_training()
"""

LEARNER = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import torch
torch.set_num_threads(1)
from helpers.learners import make_learner
from helpers.toys import class_stream, small
from holdfast import distributed
from holdfast.methods import METHODS
strengths = dict(lam=1.0, lam_a=0.1, lam_s=0.1, lam_l=0.3, eps=0.002, down=0.5, up=0.5)
for name in METHODS:
    stream = METHODS[name]().curriculum(class_stream())
    method = METHODS[name]()
    given = {{key: value for key, value in strengths.items() if key in method.hyper_parameters()}}
    given |= {{"lam": float("inf")}} if name == "frozen" else {{}}
    method.set(**given)
    learner = make_learner({model!r}, method, stream, small(epochs=1), fixed=set(given))
    for task in stream.tasks[:2]:
        learner.learn(task)
    tensors, _ = learner.state()
    mine = {{f"{{g}}/{{key}}": value for g, params in tensors.items() for key, value in params.items()}}
    theirs = [None] * distributed.processes()
    torch.distributed.all_gather_object(theirs, mine)
    for key, value in mine.items():
        assert torch.isfinite(value).all(), (name, key)
        for other in theirs:
            assert torch.equal(other[key], value), f"{{name}}: processes disagree about {{key}}"
    learner.accelerator.print("learnt", name)
assert distributed.processes() == 2
learner.accelerator.end_training()  # a process may abort at exit if gloo is still open
"""


def launch(
    script: Path, processes: int, *arguments: str, timeout: float = 90
) -> subprocess.CompletedProcess[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1"),
        "--multi_gpu" if processes > 1 else "--cpu",
        *("--num_processes", str(processes), "--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--main_process_port", str(port), str(script), *arguments),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the processes may be waiting for each other
            out, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def write(path: Path, script: str, model: str) -> Path:
    path.write_text(script.format(root=str(ROOT), tests=str(TESTS), model=model))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plain", "with loss", "uneven valid"])
def test_two_processes_give_the_numbers_of_one(tiny_bert_dry, tmp_path, variant):
    script = write(tmp_path / "script.py", SCRIPT, tiny_bert_dry)
    results = []
    for processes in (1, 2):
        out = tmp_path / f"{processes}.safetensors"
        done = launch(script, processes, str(out), str(processes), variant)
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(load_file(out))
    one, two = results
    assert one.keys() == two.keys()
    assert sum("history" in key for key in one) == 3
    for key, expected in one.items():
        error = float((two[key] - expected).abs().max())
        if key.endswith("history"):
            assert error <= 1e-4, key
            assert not torch.equal(expected[0], expected[-1]), "the weights must change"
        else:
            assert error <= 1e-6 * float(expected.abs().max()), key


@pytest.mark.slow
def test_every_method_learns_in_two_processes_that_agree(tiny_bert_dry, tmp_path):
    script = write(tmp_path / "script.py", LEARNER, tiny_bert_dry)
    done = launch(script, 2, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("learnt")] == list(
        METHODS
    )
