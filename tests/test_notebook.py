"""Runs, tables and progress in a notebook, executed by a kernel as Jupyter would."""

import pytest

from medic.utils.notebook import in_notebook

CELLS = [
    "import medic",
    """run = medic.train(dataset="digits", target="street", method="erm", iterations=3, images=18, device="cpu")
run""",
    "medic.load_runs('runs').table(metrics=['acc'])",
    "medic.analyze('errors', run)",
]


def test_this_is_no_notebook():
    assert not in_notebook()


@pytest.mark.slow
def test_a_notebook_shows_progress_runs_and_tables(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}})
    client.execute()
    pages = [[output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
             for cell in cells]  # fmt: skip
    (bar,) = (page for page in pages[1] if "<progress" in page)
    run = pages[1][-1]
    assert '<progress value="3" max="3">' in bar
    assert "it" in bar  # the speed, at the end
    assert "<table>" in run
    assert "<table" in pages[2][0]
    assert pages[3]
