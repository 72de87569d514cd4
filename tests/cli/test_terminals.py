"""Terminals, pipes and names that are not text: what a command prints, and its exit code."""

import errno
import io
import os
import re
import signal
import subprocess
import sys

import pytest

from medic.cli import main
from medic.errors import OutOfMemoryError, memory_checked, one_line, without_credentials
from tests.messages import naming

MEDIC = [sys.executable, "-m", "medic"]


def medic_process(*arguments, **options):
    return subprocess.run([*MEDIC, *arguments], capture_output=True, check=False, **options)


class Broken(io.StringIO):
    """A stream to a reader that has gone, or to a full disk."""

    def __init__(self, number):
        super().__init__()
        self._number = number
        self.null = open(os.devnull, "w")  # noqa: PTH123, SIM115

    def write(self, text):
        raise OSError(self._number, os.strerror(self._number))

    def fileno(self):
        return self.null.fileno()


def test_the_reader_of_the_output_has_gone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Broken(errno.EPIPE))
    assert main(["methods"]) == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""


def test_output_on_a_full_disk(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Broken(errno.ENOSPC))
    assert main(["methods"]) == 2
    assert capsys.readouterr().err == "medic: error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
def test_messages_that_nobody_can_read_do_not_end_a_run(monkeypatch, short, capsys, number):
    monkeypatch.setattr(sys, "stderr", Broken(number))
    assert main(["train", *short, "--method", "erm"]) == 0
    assert "averaged weights" in capsys.readouterr().out


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed):
    done = subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *MEDIC, "nope"], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert (done.stderr == b"") is ("2>" in closed)


def test_a_table_on_a_closed_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["datasets"]) == 0


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_terminals_without_unicode(environment):
    done = medic_process("train", "--help", env={**os.environ, **environment})
    assert done.returncode == 0
    assert b"\\u2026" in done.stdout


def test_errors_name_any_file_in_one_line(medic, tmp_path):
    code, _, err = medic("table", str(tmp_path / "a\udcff\n\x1b[31m"))
    assert code == 2
    assert "a\\udcff \\x1b[31m" in err
    assert err.count("\n") == 1
    code, _, err = medic("table", "a" * 5000)
    assert code == 2
    assert err.startswith("medic: error: aaa")
    assert err.endswith(os.strerror(errno.ENAMETOOLONG) + "\n")
    assert len(err) < 1100


def test_an_output_that_is_too_long(medic, short):
    code, _, err = medic("train", *short, "--method", "erm", "--output", "a" * 5000)
    assert code == 2
    assert err.splitlines()[-1].startswith("medic: error: aaa")


def test_names_that_are_no_text_are_written(medic, short, tmp_path):
    output = tmp_path / "o\udcff"
    code, out, _ = medic("train", *short, "--method", "erm", "--track", "none", "--output", str(output))
    assert code == 0
    assert "o\\udcff" in out
    assert medic("table", str(output))[0] == 0


@pytest.mark.parametrize("module", ["medic.cli", "medic.results.runs"])
def test_ctrl_c_during_imports(module):
    code = (
        "import os, signal, sys, threading; import medic.__main__ as entry;"
        "sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod(lambda name, *_:"
        f" os.kill(os.getpid(), signal.SIGINT) if name == '{module}' else None)}}));"
        "entry.run()"
    )
    done = subprocess.run([sys.executable, "-c", code, "table", "."], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "medic: stopped\n")


@pytest.mark.parametrize(
    "text",
    [
        "http://u:secret@h/x",
        "http:/u:secret@h/x",
        "http:u:secret@h",
        "postgresql:u:secret@h://db",
        "x http:\\\\u:secret@h y",
    ],
)
def test_passwords_are_not_shown(text):
    assert "secret" not in without_credentials(text)
    assert "h" in without_credentials(text)


def test_other_signs_are_kept():
    text = "--root data:v2@2024/pacs, sha256:ab@cd and a@b"
    assert without_credentials(text) == text


def test_a_password_in_a_malformed_address_is_not_shown(medic, tmp_path):
    for url in ("http:/u:secret@h/db", "http://u:sec ret@h/x y"):
        code, _, err = medic("data", "fetch", "pacs", "--root", str(tmp_path), "--url", url)
        assert code == 2
        assert "--url" in err
        assert "ret" not in err


def test_one_line():
    assert one_line(" a\n b\t\udcff\u2028é ") == "a b\\t\\udcff é"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 123 bytes."),
        RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of …"),
    ],
)
def test_a_lack_of_memory_names_what_to_lower(error):
    def mistaken():
        try:
            raise error
        except Exception as cause:
            raise ValueError("the backbone does not take the images") from cause

    with pytest.raises(OutOfMemoryError, match=naming("--batch-size --jobs --store")) as raised, memory_checked():
        mistaken()
    requests = [request for request in ("123 bytes", "1.50 GiB") if request in str(error)]
    assert re.findall(r"tried to allocate ([\d.]+ \w+)", str(raised.value)) == requests
    with pytest.raises(ValueError, match="another"), memory_checked():
        raise ValueError("another")


def test_training_without_memory(medic, short, monkeypatch):
    def step(self):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.")

    monkeypatch.setattr("medic.training.Trainer.step", step)
    code, out, err = medic("train", *short, "--method", "erm")
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert "tried to allocate 99 bytes" in err.splitlines()[-1]


@pytest.mark.parametrize(("environment", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_sleep_unless_told_otherwise(environment, policy):
    """Otherwise, two runs on the same cores would be several times slower than one after the other."""
    code = "import os, sys; sys.argv = ['medic', 'methods']; from medic.__main__ import run; run(); "
    code += "print(os.environ['OMP_WAIT_POLICY'])"
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command, environment = [sys.executable, "-c", code], {**inherited, **environment}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert printed.splitlines()[-1] == policy
