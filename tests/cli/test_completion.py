"""`medic completion`: what a shell proposes."""

import shutil
import subprocess

import pytest

from medic.cli.main import COMMANDS
from medic.methods import METHODS


@pytest.fixture
def script(medic, tmp_path):
    def write(shell):
        code, out, _ = medic("completion", shell)
        assert code == 0
        path = tmp_path / f"medic.{shell}"
        path.write_text(out)
        return path

    return write


@pytest.fixture
def proposed(script):
    """Return what bash proposes for the last word of a line."""
    path = script("bash")

    def complete(*words):
        code = 'source "$0"; COMP_WORDS=(medic "$@"); COMP_CWORD=$#; _medic; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", code, path, *words], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return complete


def test_commands_and_options(proposed):
    assert proposed("") == list(COMMANDS)
    assert proposed("tra") == ["train"]
    assert proposed("train", "--it") == ["--iterations"]
    assert {"--method", "--config", "--help"} <= set(proposed("train", "--"))
    assert proposed("figures", "--fo") == ["--format"]


def test_values(proposed):
    assert proposed("train", "--method", "") == list(METHODS)
    assert proposed("train", "--method", "medic") == ["medic", "medic-fo", "medic++"]
    assert proposed("train", "--seed", "1", "--device", "c") == ["cpu", "cuda"]
    assert proposed("train", "--device", "=", "cu") == ["cuda"]
    assert proposed("train", "--device", "=") == ["auto", "cpu", "cuda"]
    assert proposed("sweep", "--executor", "sl") == ["slurm"]
    assert proposed("train", "--objective", "ce") == ["ce", "ce+ova"]
    assert proposed("train", "--seed", "") == []  # and bash proposes files
    assert proposed("reproduce", "pacs-resnet5") == ["pacs-resnet50"]
    assert proposed("reproduce", "--methods", "erm", "vre") == ["vrex"]
    assert proposed("reproduce", "--format", "csv", "pacs-resnet5") == ["pacs-resnet50"]
    assert proposed("data", "fe") == ["fetch"]
    assert proposed("completion", "") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_syntax(script, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", script(shell)], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_what_fish_proposes(script):
    def complete(line):
        code = f"source {path}; complete -C '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", code], capture_output=True, text=True, check=True)
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    path = script("fish")
    assert set(complete("medic ")) == set(COMMANDS)
    assert complete("medic train --device c") == ["cpu", "cuda"]
    assert complete("medic train --iter") == ["--iterations"]
    assert "pacs-resnet50" in complete("medic reproduce pacs-")


def test_fish(script):
    text = script("fish").read_text()
    assert "complete -c medic -n '__fish_seen_subcommand_from train' -l optimizer -r -f -a 'sgd adam adamw'" in text
    assert all("'" not in line.replace("'", "", line.count("'") // 2 * 2) for line in text.splitlines())
