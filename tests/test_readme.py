"""What the README and the page on training say is run as it is printed."""

import medic
from tests.pages import blocks


def test_readme_shows_the_loop_of_the_tutorial():
    """The tutorial's tests run it."""
    assert blocks("README.md") == [blocks("docs/tutorials/loop.md")[1]]


def test_train(mini, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("docs/training.md")
    smaller = block.text.replace('"digits"', f'"{mini}"')
    names: dict[str, object] = {}
    exec(smaller.replace("iterations=300", "iterations=2, batch_size=2, quiet=True"), names)
    assert isinstance(names["run"], medic.Run)
    assert -1 in medic.Run(names["run"].path).predictions["label"]
