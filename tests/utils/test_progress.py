"""What a run says while it trains: its state, its speed without evaluations, and the time that is left."""

import io
import re
import sys

import pytest

import medic
from medic.evaluation.evaluator import Evaluator
from medic.utils import progress
from medic.utils.logs import console
from medic.utils.progress import Progress, duration
from tests.runs.short import SHORT


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves: `clock(5)` lets five seconds pass."""
    now = 0.0

    def wait(seconds):
        nonlocal now
        now += seconds

    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    return wait


@pytest.fixture
def lines(caplog):
    with caplog.at_level("INFO", logger="medic"):
        yield caplog


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(5, "2.0 it/s  left 2 s"), (40, "4.0 s/it  left 20 s"), (300, "30.0 s/it  left 2 min 30 s")],
)
def test_the_speed_of_a_run_is_logged(clock, lines, seconds, said):
    with Progress("erm", start=5, total=20) as reporter:
        clock(seconds)
        reporter.advance(15, "training  loss 0.500")
        reporter.advance(16, "training  loss 0.500")  # too soon for another line
    assert lines.messages == [f"erm  15/20  training  loss 0.500  {said}"]


def test_lines_come_soon_and_then_now_and_then(clock, lines):
    with Progress("erm", 0, 100) as reporter:
        for iteration in range(1, 24):
            clock(1)
            reporter.advance(iteration, "training  loss –")
    assert [line.split()[1] for line in lines.messages] == ["2/100", "12/100", "22/100"]


def test_the_first_iteration_does_not_count(clock, lines):
    """It compiles the network and captures the graph."""
    with Progress("erm", 0, 21) as reporter:
        clock(60)
        reporter.advance(1, "training  loss 1.000")
        clock(10)
        reporter.advance(11, "training  loss 1.000")
    assert "  1.0 it/s  left 10 s" in lines.messages[-1]
    assert reporter.speed == "1.0 it/s"


def test_evaluations_slow_nothing_down_and_are_part_of_what_is_left(clock, lines):
    with Progress("erm", 0, 20, {"evaluating": 3, "validating": 1}) as reporter:
        assert reporter.speed is None
        clock(10)
        reporter.advance(10, "training  loss 1.000")
        with reporter.pause("evaluating"):
            clock(50)
        clock(1)
        reporter.advance(11, "training  loss 1.000")
        with reporter.pause("validating"):
            clock(15)
        assert reporter.training == 11
        clock(4)
        reporter.advance(15, "training  loss 1.000")
        with reporter.pause("evaluating"):
            clock(30)
        clock(5)
        reporter.advance(20, "training  loss 1.000")
        with reporter.pause("evaluating"):
            clock(30)
    assert lines.messages == [
        "erm  10/20  training  loss 1.000  1.0 it/s  left > 10 s",  # nobody knows how long an evaluation takes
        "erm  11/20  training  loss 1.000  1.0 it/s  left > 1 min 49 s",
        "erm  15/20  training  loss 1.000  1.0 it/s  left 1 min 45 s",
        "erm  20/20  training  loss 1.000  1.0 it/s  left 30 s",
    ]
    assert reporter.speed == "1.0 it/s"


def test_a_long_evaluation_is_named(clock, lines):
    with Progress("erm", 0, 20) as reporter:
        clock(1)
        reporter.advance(10, "training  loss 1.000")
        clock(4)
        with reporter.pause("evaluating"):
            for _ in range(3):
                clock(6)
                reporter.count_images(600)
    assert lines.messages == ["erm  10/20  evaluating  left 1 s", "erm  10/20  evaluating  1,200 images  left 1 s"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_bar_fits_into_a_line(monkeypatch, columns):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    console.cache_clear()
    with medic.utils.logs.log_output(), Progress("medic++ → street", 0, 6000, {"evaluating": 3}) as reporter:
        reporter.advance(1234, "training  loss 0.123")
        with reporter.pause("evaluating"):
            reporter._bar.refresh()
            reporter.count_images(12_345)
            reporter._bar.refresh()
    console.cache_clear()
    text = sys.stderr.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]", text)]
    assert max(map(len, plain)) <= columns
    assert any("1234/6000 evaluating  left > " in line for line in plain)
    assert text.count("\n") == 1


@pytest.mark.parametrize("averaging", ["none", "swad"])
@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_the_pauses_of_a_run_are_foreseen(mini, tmp_path, monkeypatch, averaging, every):
    """Nothing is left when a run ends, and it was never negative."""
    left, ends, states = [], [], []
    pause, exits = Progress.pause, Progress.__exit__

    def pausing(self, state, images=0):
        left.append(dict(self._pauses))
        states.append(state)
        return pause(self, state, images)

    monkeypatch.setattr(Progress, "pause", pausing)
    monkeypatch.setattr(Progress, "__exit__", lambda self, *_: ends.append(dict(self._pauses)) or exits(self, *_))
    settings = {**SHORT, "iterations": 10, "evaluate_every": every, "averaging": averaging}
    medic.train(dataset=mini, method="erm", output=tmp_path, **settings)
    assert [set(pauses.values()) for pauses in ends] == [{0}]
    assert all(min(pauses.values()) >= 0 for pauses in left)
    assert left[0].get("validating", 0) == states.count("validating") == (2 if averaging == "swad" else 0)
    assert states.count("averaging") == (averaging == "swad")


def pauses_at_the_end(monkeypatch, train):
    """Return the pauses that are still expected when a run ends."""
    ends, exits = [], Progress.__exit__
    monkeypatch.setattr(Progress, "__exit__", lambda self, *_: ends.append(dict(self._pauses)) or exits(self, *_))
    train()
    return ends[-1]


def test_the_pauses_of_a_resumed_run_are_foreseen(mini, tmp_path, monkeypatch):
    """The evaluation that was interrupted is still to come."""

    def stopped(evaluator):
        raise KeyboardInterrupt

    record = Evaluator.record
    settings = {"dataset": mini, "method": "erm", "output": tmp_path, **SHORT, "averaging": "swad"}
    monkeypatch.setattr(Evaluator, "record", stopped)
    with pytest.raises(KeyboardInterrupt):
        medic.train(**settings)
    monkeypatch.setattr(Evaluator, "record", record)
    assert pauses_at_the_end(monkeypatch, lambda: medic.train(**settings)) == {"evaluating": 0, "averaging": 0}


def test_no_validation_is_expected_after_the_end_of_the_valley(mini, tmp_path, monkeypatch):
    losses = iter([1.0, 2.0, 3.0, 4.0])  # at iterations 5, 10, 15 and 20
    monkeypatch.setattr(Evaluator, "validation", lambda self: {"domain_loss": next(losses)})
    numbers = {"converge": 1, "tolerance": 1, "ratio": 0.0}
    settings = {"dataset": mini, "method": "erm", "output": tmp_path, **SHORT, "averaging": "swad", "hparams": numbers}
    settings["iterations"] = 20
    left = pauses_at_the_end(monkeypatch, lambda: medic.train(**settings))
    assert not left.get("validating")
    assert next(losses) == 3.0  # the valley ended at the second validation


def test_what_takes_long_shows_how_far_it_is(mini, tmp_path, monkeypatch, lines):
    """First the settings, then the features, then the evaluations of a head that is trained on them."""
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    medic.train(dataset=mini, method="erm", tune="head", output=tmp_path, **{**SHORT, "quiet": False})
    order = [
        "recipe",
        "features  400/400  computing",
        "erm → street  2/4  training",
        "erm → street  4/4  evaluating  400",
    ]
    found = [next(i for i, line in enumerate(lines.messages) if line.startswith(start)) for start in order]
    assert found == sorted(found)


@pytest.mark.slow
def test_the_speed_at_the_end_is_that_of_the_progress(mini, tmp_path, caplog, monkeypatch):
    """And no evaluation is part of it, nor of the time of a step."""
    record = Evaluator.record
    monkeypatch.setattr(Evaluator, "record", lambda self: progress.time.sleep(1) or record(self))
    with caplog.at_level("INFO", logger="medic"):
        run = medic.train(dataset=mini, method="erm", output=tmp_path, **{**SHORT, "quiet": False})
    (speed,) = [line for line in caplog.messages if "memory" in line and "peak" in line]
    assert re.match(r"training speed [\d.]+ it/s; ", speed)
    assert "images/s" not in speed
    assert all(record["step_time"] < 0.5 for record in run.records)


def test_durations():
    assert [duration(seconds) for seconds in (7.4, 250, 12000)] == ["7 s", "4 min 10 s", "3 h 20 min"]
