"""The page on other training frameworks is run from top to bottom, on few images."""

from pathlib import Path

import pytest

from medic.models import _torchvision
from tests.pages import run_page


@pytest.mark.nightly
def test_lightning_and_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _torchvision.ensure()  # Lightning imports torchvision, which needs it beside a CPU build of torch
    for package in ("lightning", "accelerate"):
        pytest.importorskip(package, reason=f"needs {package}")
    monkeypatch.chdir(tmp_path)
    smaller = {r"label < 6\)": "label < 6) & (torch.arange(len(label)) % 6 == 0)"}
    names = run_page("docs/frameworks.md", smaller)
    module, learner = names["module"], names["learner"]
    assert module.learner.iteration == learner.iteration > 0
    (checkpoint,) = (tmp_path / "lightning").rglob("*.ckpt")
    trainer = names["lightning"].Trainer(max_epochs=3, accelerator="cpu", logger=False, default_root_dir="again")
    resumed = names["OpenSetModule"]()
    trainer.fit(resumed, names["loader"], ckpt_path=checkpoint, weights_only=False)
    assert resumed.learner.iteration == 3 * module.learner.iteration // 2
