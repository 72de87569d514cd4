"""Which skips fail a session in CI."""

import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = """
import pytest
def test_of_a_browser(): pytest.skip("needs chromium and chromedriver, which could not be installed")
"""
MISSING = "import pytest\npytest.importorskip('no_such_package')\n"
EXPECTED = """
import pytest
def test_that_passes(): pass
def test_of_a_gpu(): pytest.skip("needs a CUDA device")
@pytest.mark.xfail
def test_that_fails_as_foreseen(): assert False
"""


@pytest.mark.parametrize(
    ("ci", "files", "listed"),
    [
        ("true", [EXPECTED, SKIPPED, MISSING], ["which could not be installed", "no_such_package"]),
        ("", [EXPECTED, SKIPPED, MISSING], []),
    ],
)
def test_unexpected_skips_fail_in_ci(tmp_path, monkeypatch, ci, files, listed):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for number, code in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(code)
    options = ["-n", "1", "-p", "xdist", "-p", "tests.skips", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == bool(listed), done.stdout + done.stderr
    _, _, said = done.stdout.partition("unexpected skips")
    assert all(reason in said for reason in listed)
    assert bool(said) == bool(listed)
