"""A small file in the form of CLINC150."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.data.clinc import CLINC_JSON


def plant(data_dir: Path, **changes: Any) -> Path:
    """Write 23 intents with two training, one validation and one test sentence each; return the folder."""
    labels = [f"intent{number:02}" for number in range(23)]
    content: dict[str, Any] = {
        "oos_val": [["sing backwards", "oos"]],
        "val": [[f"valid {label}", label] for label in labels],
        "train": [[f"{word} {label}", label] for word in ("first", "second") for label in labels],
        "oos_test": [["count the stars", "oos"], ["why", "oos"]],
        "test": [[f"test {label}", label] for label in labels],
        "oos_train": [],
    }
    (data_dir / CLINC_JSON).parent.mkdir(parents=True)
    (data_dir / CLINC_JSON).write_text(json.dumps(content | changes))
    return data_dir
