"""The paths that arguments of `medic predict` stand for: which, in which order, and what is refused."""

import io
import itertools
import os
import sys
from glob import glob

import pytest

from medic.deploy.paths import MAX_DEPTH, MAX_LINE, image_paths
from medic.errors import MedicError
from tests.messages import naming

FILES = ["a.png", "a/1.JPG", "a/2.txt", "a/b/3.jpeg", "a/.hidden/4.png", "a/.5.png", "a-b/6.webp", "b/7.png", "n.txt"]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of images and others, which is the working directory."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*arguments):
    return list(image_paths([str(argument) for argument in arguments]))


def test_a_folder_is_walked_in_the_order_of_paths(tree):
    expected = [str(tree / name) for name in FILES if not name.endswith("txt") and "/." not in name]
    assert paths(tree) == sorted(expected)
    assert paths("a") == ["a/1.JPG", "a/b/3.jpeg"]


def test_arguments_keep_their_order(tree):
    (tree / "gone.png").symlink_to("nowhere.png")
    assert paths("b", "gone.png", "a.png", "a/b") == ["b/7.png", "gone.png", "a.png", "a/b/3.jpeg"]


@pytest.mark.parametrize(
    "pattern",
    [
        "*.png",
        "a/*.JPG",
        "*/*.*g",
        "**/*.png",
        "a/**/*.jp*g",
        "**/b/*",
        "?/[0-9].*",
        "**/**/7.png",
        "*/*/3.jpeg",
        "a/.*",
    ],
)
def test_a_pattern_matches_as_those_of_a_shell(tree, pattern):
    files = sorted({name for name in glob(pattern, recursive=True) if os.path.isfile(name)})  # noqa: PTH113, PTH207
    assert files
    assert [name for name in paths(pattern) if ".hidden" not in name] == files
    assert paths(f"{tree}/{pattern}") == [f"{tree}/{name}" for name in paths(pattern)]


def test_a_folder_that_a_pattern_matches_is_walked(tree):
    assert paths("a*") == ["a/1.JPG", "a/b/3.jpeg", "a-b/6.webp", "a.png"]
    assert paths("b/**") == ["b/7.png"]


def test_a_file_with_the_name_of_a_pattern(tree):
    (tree / "[x].png").touch()
    assert paths("[x].png") == ["[x].png"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_list(tree, line_end, monkeypatch):
    lines = [b"b/7.png", b"", b"  ", b" leading.png", b"*.png", b"\xff.png", b"last.png"]
    expected = ["b/7.png", " leading.png", "*.png", os.fsdecode(b"\xff.png"), "last.png"]
    (tree / "list.txt").write_bytes(line_end.join(lines))
    assert paths("a.png", "@list.txt", "a.png") == ["a.png", *expected, "a.png"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line_end.join(lines))))
    assert paths("-") == expected


def test_an_empty_list_has_no_paths(tree):
    (tree / "list.txt").touch()
    assert paths("@list.txt") == []


@pytest.mark.parametrize(
    ("argument", "message"),
    [("empty", "folder empty .png"), ("*.gif", "pattern *.gif"), ("gone/*.png", "pattern gone/*.png"),
     ("gone", "path gone does not exist"), ("a.png/1", "path a.png/1 does not exist"), ("", "path does not exist"),
     ("@gone.txt", "list gone.txt No such file"), ("@a", "list a directory"), ("@", "list")],
)  # fmt: skip
def test_mistakes_are_raised_before_anything_is_read(tree, argument, message):
    (tree / "empty").mkdir()
    (tree / "empty" / "notes.txt").touch()
    with pytest.raises(MedicError, match=naming(message)):
        image_paths(["a.png", argument])


def test_a_list_that_has_no_lines(tree):
    (tree / "zeros").write_bytes(bytes(2 * MAX_LINE))
    with pytest.raises(MedicError, match=naming("zeros line 1")):
        paths("@zeros")


def test_links(tree, caplog):
    (tree / "b" / "up").symlink_to(tree)
    (tree / "b" / "other").symlink_to(tree / "a" / "b")
    (tree / "b" / "self.png").symlink_to("self.png")
    assert paths("b") == ["b/7.png", "b/other/3.jpeg", "b/self.png", "b/up/a-b/6.webp", "b/up/a.png", "b/up/a/1.JPG",
                          "b/up/a/b/3.jpeg"]  # fmt: skip
    assert "b/up/b: it links to one of its parent folders" in caplog.text


def test_a_folder_that_cannot_be_read_has_its_row(tree, caplog, monkeypatch):
    scan = os.scandir

    def refuse(folder):
        if folder == "a/b":
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert paths("a") == ["a/1.JPG", "a/b"]
    assert "folder a/b cannot be read: Permission denied" in caplog.text


def test_folders_that_are_too_deep(tree):
    deep = tree.joinpath(*["d"] * (MAX_DEPTH + 5))
    deep.mkdir(parents=True)
    (deep / "x.png").touch()
    (path,) = paths("d")
    assert path.count("d") == MAX_DEPTH + 1


def test_a_list_is_read_as_it_is_needed(monkeypatch):
    class Endless(io.RawIOBase):
        reads = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.reads += 1
            buffer[:6] = b"x.png\n"
            return 6

    endless = Endless()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(endless, 6)))
    assert list(itertools.islice(image_paths(["-"]), 3)) == ["x.png"] * 3
    assert endless.reads < 10
