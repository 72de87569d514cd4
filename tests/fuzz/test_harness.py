"""The harness notices every kind of fault, and goes on."""

import os
import subprocess
import time

import pytest

from benchmarks.fuzz import harness
from benchmarks.fuzz.harness import Door, Fault, command, fuzz


def raise_error(folder):
    raise KeyError("x")


def break_promise(folder):
    raise Fault("promise")


FAULTS = {
    "KeyError": raise_error,
    "promise": break_promise,
    "hangs at": lambda folder: time.sleep(60),
    "dies with exit code 3": lambda folder: os._exit(3),
    "MemoryError": lambda folder: bytes(2 * harness.MEMORY),
    "outside the folder: open": lambda folder: (folder.parent / "x").write_text(""),
    "outside the folder: os.mkdir": lambda folder: (folder / ".." / "y").mkdir(),
    "outside the folder: os.rename": lambda folder: (folder / "ready").replace(folder.parent / "z"),
    "outside the folder: subprocess.Popen": lambda folder: subprocess.run(["true"], check=False),
}


def write_through_link(folder):
    (folder / "link").symlink_to(folder.parent)
    (folder / "link" / "x").write_text("")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "cause"), [*FAULTS.items(), ("outside the folder: open", write_through_link)])
def test_a_fault_is_counted(text, cause, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "SECONDS", 5)

    def attempt(folder, draw):
        if draw.random() == first:
            cause(folder)
        return True

    first = harness.random.Random("test/0/0").random()
    summary = fuzz(Door("test", lambda folder: None, attempt), tmp_path / "inside", range(3))
    assert (summary.inputs, summary.accepted) == (3, 2)
    [(fault, numbers)] = summary.faults.items()
    assert text in fault
    assert numbers == [0]
    assert any(fault in line for line in summary.lines(seed=0))


def test_inputs_depend_on_the_seed_and_the_number_only(tmp_path):
    door = Door("test", lambda folder: None, lambda folder, draw: draw.random() < 0.5)
    kept = [fuzz(door, tmp_path / "inside", numbers).accepted for numbers in (range(40), range(20), range(20, 40))]
    assert kept[0] == kept[1] + kept[2]


def test_a_command_is_refused_in_one_line():
    code, out, err = command("train", "--method", "ermm")
    assert (code, out) == (2, "")
    assert "ermm" in err
