"""Runs, tables and progress in a notebook, executed by a kernel as Jupyter would, and the notebooks of the site."""

import re
from pathlib import Path
from typing import Any

import pytest

from medic.utils.notebook import in_notebook
from tests.pages import DOCS

CELLS = [
    "import medic",
    """run = medic.train(dataset="digits", target="street", method="erm", iterations=3, images=18, device="cpu")
run""",
    "medic.load_runs('runs').table(metrics=['acc'])",
    "medic.analyze('errors', run)",
]


def test_this_is_no_notebook():
    assert not in_notebook()


def execute(notebook: Any, folder: Path) -> None:
    """Execute a notebook in a folder; an exception in a cell is an error."""
    nbclient = pytest.importorskip("nbclient")
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()


@pytest.mark.slow
def test_a_notebook_shows_progress_runs_and_tables(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    execute(nbformat.v4.new_notebook(cells=cells), tmp_path)
    pages = [[output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
             for cell in cells]  # fmt: skip
    (bar,) = (page for page in pages[1] if "<progress" in page)
    run = pages[1][-1]
    assert '<progress value="3" max="3">' in bar
    assert "it" in bar  # the speed, at the end
    assert "<table>" in run
    assert "<table" in pages[2][0]
    assert pages[3]


NOTEBOOKS = sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_of_the_site(name, tmp_path):
    """Few images and iterations; the sweeps run in the kernel's own process."""
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", 4)
    for cell in notebook.cells:
        quick = re.sub(r"images=\d+,\s+iterations=\d+", 'images=18, iterations=2, device="cpu"', cell.source)
        cell.source = quick.replace("medic.sweep(", 'medic.sweep(executor="here", span=', 1)
    execute(notebook, tmp_path)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebooks_show_their_outputs(name):
    """The site shows what was saved."""
    nbformat = pytest.importorskip("nbformat")
    cells = nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", 4).cells
    codes = [cell for cell in cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in codes)
    assert sum(bool(cell.outputs) for cell in codes) >= 2
    assert not any(output.output_type == "error" for cell in codes for output in cell.outputs)
