"""Training in parts: stopped, and gone on with."""

import signal

import pytest

import medic
from medic.runs.interrupts import Stopped
from medic.training import Trainer
from tests.messages import naming


def in_parts(settings, output, monkeypatch, stops, number=signal.SIGINT):
    """Train, be stopped by a signal after some iterations, and go on each time: the finished run."""
    step = Trainer.step

    def interrupted(self):
        loss = step(self)
        if self.iteration in stops:
            signal.raise_signal(number)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        for iteration in stops:
            with pytest.raises(Stopped, match=naming(f"iteration {iteration}")) as stopped:
                medic.train(**settings, output=str(output))
            assert stopped.value.exit_code == 128 + number
        return medic.train(**settings, output=str(output))
