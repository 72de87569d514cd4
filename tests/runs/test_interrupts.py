"""Requests to stop."""

import logging
import signal
import subprocess
import sys
import time

import pytest

import medic
from medic.runs import interrupts
from medic.runs.interrupts import Interrupts, Stopped


@pytest.fixture(autouse=True)
def hangup():
    """Let a SIGHUP end a process, as without `nohup pytest`; only here, so that `nohup` still protects the session."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_recorded_and_the_second_stops_at_once(number):
    before = signal.getsignal(number)
    with Interrupts("stopping soon") as handler:
        signal.raise_signal(number)
        assert handler.received == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts("stopping soon") as handler:
        signal.raise_signal(signal.SIGHUP)
    assert handler.received is None
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_the_first_is_acknowledged_at_once(caplog):
    with Interrupts("stopping soon"):
        signal.raise_signal(signal.SIGINT)
        assert caplog.messages == ["stopping soon; press Ctrl-C again to stop immediately"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("error", [BrokenPipeError(), RuntimeError("reentrant call")])
def test_an_acknowledgement_that_cannot_be_shown_does_not_end_a_run(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(logging.Logger, "warning", fail)
    with Interrupts("stopping soon") as handler:
        signal.raise_signal(signal.SIGHUP)
        assert handler.received == signal.SIGHUP


SLOWLY = """
import sys, time
from medic.{module} import {owner} as owner
before = owner.{function}
def slowly(*arguments, **named):
    sys.stderr.write("now\\n")  # at once, unlike print, since several threads do it
    for _ in range({seconds} * 100):
        time.sleep(0.01)
    return before(*arguments, **named)
owner.{function} = slowly
from medic.__main__ import run
sys.exit(run())
"""
"""The command line, with a function that takes long and says when it starts."""


def start(folder, output, module, owner, function, seconds, prefix=()):
    code = SLOWLY.format(module=module, owner=owner, function=function, seconds=seconds)
    settings = {**folder, "output": output, "track": "none"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if name != "known"]
    command = [*prefix, sys.executable, "-c", code, "train", *options, "--known", *settings["known"]]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert any(line == "now\n" for line in process.stderr)
    return process


def interrupt(process):
    """Send Ctrl-C; return the next line of the process, and after how many seconds it came."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    return process.stderr.readline(), time.monotonic() - began


@pytest.mark.slow
def test_ctrl_c_in_a_long_iteration(folder, tmp_path):
    with start(folder, tmp_path, "training", "Trainer", "step", 4) as process:
        line, seconds = interrupt(process)
        assert line.startswith("medic: note: saving a checkpoint and stopping after this iteration")
        assert seconds < 2
        assert process.stderr.read().endswith("medic: stopped at iteration 1: rerun the same command to resume\n")
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "code"), [([], 128 + signal.SIGHUP), (["nohup"], 0)])
def test_a_terminal_that_closes(folder, tmp_path, prefix, code):
    """A run stops with a checkpoint, unless `nohup` started it: then it trains to the end."""
    with start(folder, tmp_path, "training", "Trainer", "step", 1, prefix) as process:
        process.send_signal(signal.SIGHUP)
        last = process.stderr.readlines()[-1]
    stopped = last == "medic: stopped at iteration 1: rerun the same command to resume\n"
    assert (process.returncode, stopped) == (code, code != 0)
    assert len(list(tmp_path.glob("*/done"))) == (code == 0)


STUCK = """
import hashlib, sys, time
from medic.training import Trainer
before = Trainer.step
def slowly(self):
    if self.iteration == {iteration}:
        for _ in range(40 if {python} else 0):
            before(self)  # which changes weights, statistics and generators
            self.iteration -= 1
            print("now", file=sys.stderr, flush=True)
            time.sleep(1)
        print("now", file=sys.stderr, flush=True)
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, as a backward pass
    return before(self)
Trainer.step = slowly
from medic.__main__ import run
sys.exit(run())
"""
"""The command line, with an iteration that takes minutes, in Python or inside one function of C."""


@pytest.mark.slow
@pytest.mark.parametrize("python", [True, False])
@pytest.mark.parametrize("iteration", [0, 2])
def test_sigterm_in_a_long_iteration_is_answered_within_seconds(folder, tmp_path, python, iteration):
    """The iteration is dropped, and the run resumes at its last checkpoint as if it had not begun."""
    settings = {**folder, "iterations": 4, "checkpoint_every": 1, "track": "none", "evaluate_every": 4, "threads": 1}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items() if name != "known"]
    code = STUCK.format(python=python, iteration=iteration)
    command = [sys.executable, "-c", code, "train", *options, "--known", *settings["known"], f"--output={tmp_path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert any(line == "now\n" for line in process.stderr)
        time.sleep(0.5)  # until it is inside the function of C
        began = time.monotonic()
        process.terminate()
        said = process.stderr.read().splitlines()
    assert time.monotonic() - began < 15  # 3 or 6 s, on a machine that others use too
    stopped = f"stopped after iteration {iteration}: rerun the same command to resume at iteration {iteration}"
    assert said[-1] == f"medic: {stopped}"
    assert process.returncode == 128 + signal.SIGTERM
    resumed = medic.train(**settings, output=str(tmp_path), quiet=True)
    whole = medic.train(**settings, output=str(tmp_path / "whole"), quiet=True)
    for name in ("model.safetensors", "predictions.npz"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_what_is_written_is_not_left(monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 1)  # after which the process would end on a busy machine
    written = []

    def work():
        with Interrupts("stopping soon", lambda: "late") as received:
            with received.writing:
                signal.raise_signal(signal.SIGTERM)
                time.sleep(1.5)
                written.append(True)
            for _ in range(600):  # a signal just before a long sleep would not end it
                time.sleep(0.1)

    with pytest.raises(Stopped, match="late"):
        work()
    assert written


def test_what_ends_in_time_is_not_left(monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 0.2)
    with Interrupts("stopping soon", lambda: "late") as received:
        signal.raise_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert received.received == signal.SIGTERM


@pytest.mark.slow
def test_ctrl_c_twice(folder, tmp_path):
    with start(folder, tmp_path, "training", "Trainer", "step", 60) as process:
        interrupt(process)
        line, seconds = interrupt(process)
    assert (line, process.returncode) == ("medic: stopped\n", 130)
    assert seconds < 2


@pytest.mark.parametrize(
    ("module", "owner", "function", "seconds"),
    [
        pytest.param("runs", "train", "build_network", 60, marks=pytest.mark.slow),
        pytest.param("runs", "build", "Grid", 60, marks=pytest.mark.slow),
        ("data", "store", "decode", 1),
    ],
)
def test_ctrl_c_before_training(folder, tmp_path, monkeypatch, module, owner, function, seconds):
    """While the network or the trainer is made, and while threads decode images."""
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    with start(folder, tmp_path / "runs", module, owner, function, seconds) as process:
        line, took = interrupt(process)
        while line == "now\n":  # of another thread
            line = process.stderr.readline()
    assert (line, process.returncode) == ("medic: stopped\n", 130)
    assert took < 2
    assert not (tmp_path / "runs").exists()
