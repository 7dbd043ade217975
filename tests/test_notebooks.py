"""The notebooks of the documentation run from top to bottom."""

import nbformat
import pytest
from helpers.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_no_outputs(path):
    assert path.stat().st_size < 20_000
    cells = nbformat.read(path, 4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert any("assert" in cell.source for cell in cells if cell.cell_type == "code")
    assert path.name in (ROOT / "docs" / "notebooks" / "index.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    from nbclient import NotebookClient

    book = nbformat.read(path, 4)
    NotebookClient(book, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
