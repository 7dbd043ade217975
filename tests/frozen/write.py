# ruff: noqa: E402
"""Write the fixtures and the expected numbers of this folder: `python tests/frozen/write.py`.

It was run once, before the package was rearranged. A later change of a default replaces the entries
concerned, with the old value, the new value and the reason in CHANGES.md.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

torch.set_num_threads(1)

from helpers import frozen


def main() -> None:
    """Write all fixtures and numbers."""
    os.chdir(frozen.HERE)
    for folder in (frozen.MODEL, frozen.STATES, frozen.IMPORTANCE):
        shutil.rmtree(folder, ignore_errors=True)
    frozen.save_model()
    expected: dict[str, object] = {"digests": frozen.spec_digests()}
    with tempfile.TemporaryDirectory() as scratch:
        expected["small"] = frozen.report_of_small(Path(scratch))
        expected["lm"] = frozen.report_of_lm(Path(scratch))
    expected["states"] = {name: frozen.save_state(name) for name in ("slda", "la")}
    frozen.save_importance()
    values, card = frozen.load_importance()
    expected["importance"] = {"card": card, "sums": {n: float(v.double().sum()) for n, v in values.items()}}
    expected["methods"] = {
        f"{name}/{stream}": frozen.taught(name, stream)
        for name in frozen.METHOD_NAMES
        for stream in frozen.STREAMS
    }
    (frozen.HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
