"""Commands that are killed while they write, or whose disk is full: nothing stays, and the same command works again."""

import os
import resource
import signal

import pytest

from medic.cli.main import main
from tests.processes import in_child

COMMANDS = [
    "predict RUN IMAGES -o rows.csv",
    "report RUN -o page.html",
    "analyze errors RUN --json numbers.json",
    "analyze errors RUN -o figure.png",
    "calibrate RUN --accept 0.5 -o model",
]
EXPORT = "export RUN --format torch-export -o model.pt2"
"""Takes seconds."""


@pytest.fixture
def command(request, trained, images, tmp_path, monkeypatch):
    """A command line, to be executed in an empty folder, in which it writes the file or folder of its last argument."""
    monkeypatch.chdir(tmp_path)
    return request.param.replace("RUN", str(trained.path)).replace("IMAGES", str(images / "z")).split()


def kill_at_first_fsync():
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("command", COMMANDS, indirect=True)
def test_a_killed_command_can_be_repeated_and_leaves_nothing(command, tmp_path):
    code, _ = in_child(lambda: main(command), kill_at_first_fsync)
    assert code == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    assert main(command) == 0
    assert [path.name for path in tmp_path.iterdir()] == [command[-1]]


def hundred_bytes_per_file():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))


@pytest.mark.parametrize("command", [*COMMANDS, EXPORT], indirect=True)
def test_a_file_that_the_system_refuses_is_one_line(command, tmp_path):
    code, printed = in_child(lambda: main(command), hundred_bytes_per_file)
    assert code == 2
    assert f"{command[-1]} cannot be written: File too large" in printed.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_export_checks_on_some_images(trained, capsys):
    assert main(["export", str(trained.path), "--images"]) == 2
    assert "--images requires at least one value" in capsys.readouterr().err
