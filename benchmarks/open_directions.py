"""Count the input directions that AdaBOP leaves open in a real encoder, by strength and mass of the moment.

A plain mean over tokens (mass 1) is small relative to the identity. The published strengths then keep every
direction open, and the method is sequential fine-tuning with smaller steps.

    python benchmarks/open_directions.py --data-dir DATA
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from holdfast.data import load_stream
from holdfast.models import build_classifier
from holdfast.settings import preset
from holdfast.steps.projection import projector, second_moments

STRENGTHS = (0.005, 0.01, 0.03, 0.08, 0.1, 0.3)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
    arguments.add_argument("--stream", default="hwu64")
    arguments.add_argument("--model", default="minilm")
    chosen = arguments.parse_args()
    settings = preset("small")
    stream = load_stream(chosen.stream, data_dir=chosen.data_dir)
    stream = stream.capped(train=settings.train_per_class, valid=settings.valid_per_class)
    task = stream.tasks[0]
    model = build_classifier(chosen.model, settings, seed=0, labels=stream.labels)
    model.head.add(task.labels)
    model.head.teach(task.labels)
    moments, tokens = second_moments(model, model.encode(task.train))
    seen = int(max(tokens.values()))
    print(f"{stream.name} task 1, {chosen.model}, {seen} tokens; open directions by strength")
    for mass in (1, 4000):
        print(f"mass {mass}: " + "  ".join(f"{lam:g}" for lam in STRENGTHS))
        for place, moment in moments.items():
            kept = [round(float(torch.trace(projector(mass * moment, lam)))) for lam in STRENGTHS]
            print(f"  {place}: {kept} of {len(moment)}")


if __name__ == "__main__":
    main()
