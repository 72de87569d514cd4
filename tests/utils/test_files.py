"""A file or folder is complete or does not exist, and what a killed writer left disappears at the next write."""

import os
import subprocess
import sys

import pytest

from medic.utils.files import atomic_folder, atomic_write, check_writable, csv_cell, csv_name, write_text

WRITE = """
import sys
from pathlib import Path
from medic.utils.files import atomic_folder, atomic_write

path = Path(sys.argv[2])
with atomic_write(path) if sys.argv[1] == "file" else atomic_folder(path) as place:
    place.write(b"half") if sys.argv[1] == "file" else (place / "half").write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["file", "folder"])
def writer(request, tmp_path):
    """A process that has written a half of `name` and waits, and a function that writes the same place here."""
    path = tmp_path / "name"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE, request.param, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def write():
        if request.param == "file":
            write_text(path, "whole")
        else:
            with atomic_folder(path) as folder:
                (folder / "whole").touch()

    with process:
        assert process.stdout.readline() == "writing\n"
        yield process, write
        process.kill()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_writer_left_is_removed_by_the_next(writer, tmp_path):
    process, write = writer
    process.kill()
    process.wait()
    [left] = names(tmp_path)
    assert left.startswith(".name.")
    write()
    assert names(tmp_path) == ["name"]


def test_a_living_writer_is_left_alone(writer, tmp_path):
    _, write = writer
    [left] = names(tmp_path)
    write()
    assert names(tmp_path) == [left, "name"]


def test_a_writer_that_goes_on_completes_its_file(tmp_path):
    with atomic_write(tmp_path / "name") as file:
        file.write(b"first")
        write_text(tmp_path / "name", "second")
    assert (tmp_path / "name").read_text() == "first"
    assert names(tmp_path) == ["name"]


def test_only_temporaries_of_the_same_name_are_removed(tmp_path):
    kept = [".name.tmp", ".name.json.12ab.tmp", ".other.12ab.tmp", ".name.mine.tmp", "name.12ab.tmp"]
    for name in [*kept, ".name.12ab.tmp"]:
        (tmp_path / name).touch()
    write_text(tmp_path / "name", "")
    assert names(tmp_path) == sorted([*kept, "name"])


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "name").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "name") as file:
        file.write(b"%d" % (1 // 0))
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "folder"):
        raise ZeroDivisionError
    assert names(tmp_path) == ["name"]
    assert (tmp_path / "name").read_text() == "old"


def test_a_pipe_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable("output", pipe)
        with atomic_write(pipe) as file:
            file.write(b"rows")
        assert os.read(reader, 10) == b"rows"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_folder_keeps_its_other_files(tmp_path):
    (tmp_path / "name").mkdir()
    for file in ("mine", "whole"):
        (tmp_path / "name" / file).write_text("old")
    with atomic_folder(tmp_path / "name") as folder:
        (folder / "whole").write_text("new")
    assert names(tmp_path) == ["name"]
    assert {path.name: path.read_text() for path in (tmp_path / "name").iterdir()} == {"mine": "old", "whole": "new"}


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1", "''-1"])
def test_a_name_that_begins_like_a_formula(name):
    assert csv_cell(name) == f"'{name}"
    assert csv_name(csv_cell(name)) == name


@pytest.mark.parametrize("name", ["cat", "", "'tis", "a=b", "'", "1", "/x/-1.png"])
def test_any_other_name_is_unchanged(name):
    assert csv_cell(name) == csv_name(name) == name
