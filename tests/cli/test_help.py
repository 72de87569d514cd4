"""Help, lists and hints: their notation, and that nobody waits for torch."""

import argparse
import json
import re
import subprocess
import sys

import pytest

from medic.cli import catalogue
from medic.cli.main import COMMANDS, make_parser
from medic.cli.options import user_settings
from medic.config.settings import SETTINGS
from medic.errors import MedicError
from tests.messages import naming


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["train", "--help"], ["sweep", "--help"], ["reproduce", "--help"], ["search", "--help"]),
        *(["methods"], ["datasets"], ["datasets", "pacs"], ["reproduce", "--list"], ["completion", "bash"]),
        *(["train", "--method", "medicc"], ["train", "--dataset", "pcas"], ["train", "--target", "sketh"]),
        *(["train", "--dataset", "pacs", "--target", "sketh"], ["train", "--epochs", "3"]),
        *(["methods", "medicc"], ["datasets", "pcas"], ["train", "--device", "gpu"]),
        *(["train", "--score", "blcs"], ["train", "--head", "seperate"], ["evaluate", "x", "--threshold", "sorce"]),
        *(["reproduce", "pacs-resnet51"], ["sweep", "--method", "medicc"], ["search", "--method", "medicc"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_without_torch(arguments):
    code = "import sys, medic.cli; code = medic.cli.main(sys.argv[1:]); print(code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    mistake = done.stderr.startswith("medic: error: unknown ")
    assert done.stdout.splitlines()[-1] == f"{2 if mistake else 0} False"
    assert mistake == (len(arguments) > 1 and arguments[-1] not in ("--help", "pacs", "--list", "bash"))


def test_the_catalogue_is_current():
    """If this fails: python -m medic.cli.catalogue."""
    assert json.loads(catalogue.FILE.read_text()) == json.loads(json.dumps(catalogue.make()))


def test_an_outdated_catalogue_is_not_used(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch")
    catalogue._read.cache_clear()
    assert catalogue.stored() is not None
    with pytest.raises(ValueError, match=naming("'medicc' 'medic'")):
        catalogue.check_names({"method": "medicc"})
    monkeypatch.setattr(catalogue, "fingerprint", lambda: "of other modules")
    catalogue._read.cache_clear()
    assert catalogue.stored() is None
    catalogue.check_names({"method": "medicc"})  # left to the registry
    catalogue._read.cache_clear()


def options(command):
    return [action for action in make_parser(command)._actions if action.option_strings]


@pytest.mark.parametrize("command", COMMANDS)
def test_one_notation(command):
    for action in options(command):
        assert not re.search(r"\[[^\]]*\]\s*$|\((auto|\d+)\)$", action.help), action.help
        if action.default not in (None, False, argparse.SUPPRESS) and action.default != []:
            assert f"(default: {action.default})" in action.help
        if action.nargs != 0:
            assert all(name.isupper() or "…" in name for name in [action.metavar or ""] if isinstance(name, str))
            assert action.metavar
    for action in make_parser(command)._actions:
        if not action.option_strings:
            assert action.metavar.isupper()


@pytest.mark.parametrize("command", COMMANDS)
def test_lists_can_be_given_one_by_one(command):
    for action in options(command):
        assert (action.nargs in ("*", "+")) == isinstance(action, argparse._ExtendAction), action.option_strings


def test_repeated_options_add(medic):
    import yaml

    train = ["train", "--target", "street", "--method", "erm", "--print-config"]
    out = medic(*train, "--known", "0", "1", "--known", "2", "--unknown=8", "--unknown=9")[1]
    printed = yaml.safe_load(out)
    assert (printed["known"], printed["unknown"]) == (["0", "1", "2"], ["8", "9"])
    parsed = make_parser("reproduce").parse_args(
        ["pacs", "--seeds", "1", "--seeds", "2", "--slurm", "a=1", "--slurm", "b"]
    )
    assert (parsed.seeds, parsed.slurm) == ([1, 2], ["a=1", "b"])
    assert make_parser("sweep").parse_args(["--span", "seed=0,1", "--span", "lr=1"]).span == ["seed=0,1", "lr=1"]
    assert make_parser("sweep").parse_args([]).span == []  # not what an earlier line gave


@pytest.mark.parametrize("command", ["train", "sweep", "reproduce", "search"])
@pytest.mark.parametrize("columns", [80, 120])
def test_settings_are_in_groups(medic, monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = medic(command, "--help")[1]
    assert max(map(len, out.splitlines())) <= columns
    titles = re.findall(r"^(\w+):$", out, re.MULTILINE)
    expected = ["run", "data", "network", "tasks", "objective", "optimisation", "evaluation", "execution"]
    assert titles[-8:] == expected
    groups = {
        group.title: {action.dest for action in group._group_actions} for group in make_parser(command)._action_groups
    }
    assert {"lr", "schedule"} <= groups["optimisation"]
    assert set(SETTINGS) <= set().union(*(groups[title] for title in expected))
    assert out.startswith(f"usage: medic {command} [options]")


@pytest.mark.parametrize(("option", "message"), [
    ("--epochs 20", "iterations --iterations"),
    ("--num-epochs=20", "iterations --iterations"),
    ("--resume", "same command"),
    ("--workers 4", "threads --threads"),
    ("--num_workers 4", "threads --threads"),
    ("--gpu 0", "--device cuda"),
    ("--gpus 2", "--device cuda"),
    ("--cuda", "--device cuda"),
    ("--lr-scheduler cosine", "--schedule cosine"),
    ("--batch 32", "--batch-size --images"),
    ("--imgsz 224", "--image-size"),
    ("--img-size 224", "--image-size"),
    ("--data DIR", "--root"),
    ("--test-envs 0", "name number --target"),
    ("--test_envs 0", "name number --target"),
])  # fmt: skip
def test_options_of_other_tools(medic, option, message):
    code, out, err = medic("train", "--target", "street", *option.split())
    assert (code, out) == (2, "")
    assert re.search(naming(message), err), err
    assert "did you mean" not in err
    assert err.count("\n") == 1


def test_settings_of_other_tools(tmp_path):
    """In Python and in files too, where a name that is only spelled alike would mislead."""
    import medic

    with pytest.raises(MedicError, match=naming("model 'resnet18' backbone='resnet18'")):
        medic.train(model="resnet18", target="street")
    (tmp_path / "run.yaml").write_text("epochs: 3\n")
    with pytest.raises(MedicError, match=naming("unknown setting 'epochs' run.yaml --iterations")):
        user_settings(make_parser("train").parse_args(["--config", str(tmp_path / "run.yaml")]))


def test_a_hint_is_for_commands_with_the_option(medic):
    assert "--iterations" not in medic("table", ".", "--epochs", "3")[2]
    assert "--metrics" in medic("table", ".", "--metric", "acc")[2]


def test_metrics_by_other_names(medic, tmp_path):
    from tests.results.written import write_run

    write_run(tmp_path, "a", "erm", "a", 0, [0.1, 0.2])
    code, _, err = medic("table", str(tmp_path), "--metrics", "accuracy")
    assert code == 2
    assert re.search(naming("'accuracy' 'acc'"), err)


def test_dry_run_of_a_run(medic, short, tmp_path, monkeypatch):
    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    before = set(tmp_path.rglob("*"))
    train = ["train", *short, "--method", "erm", "--track", "none"]
    code, out, err = medic(*train, "--dry-run")
    assert (code, err) == (0, "")
    assert set(tmp_path.rglob("*")) == before
    facts = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert facts["known"] == "0, 1, 2, 3, 4, 5"
    assert facts["target"] == "street 60 known + 40 unknown images"
    assert facts["backbone"].startswith("small, initialised by your code")
    assert facts["training"].startswith("2 iterations of 2 images")
    assert "state" not in facts
    code, trained, err = medic(*train)
    assert code == 0
    assert facts["output"] in trained
    assert all(fact in " ".join(err.split()) for fact in map(" ".join, map(str.split, facts.values())))
    assert "finished" in medic(*train, "--dry-run")[1]


def test_dry_run_writes_no_store(medic, tmp_path, monkeypatch):
    from tests.data.pictures import picture

    monkeypatch.setenv("MEDIC_CACHE", str(tmp_path / "cache"))
    for domain in ("x", "y", "z"):
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / domain / label
            folder.mkdir(parents=True)
            for number in range(5):
                picture(number).save(folder / f"{number}.png")
    before = set(tmp_path.rglob("*"))
    train = [
        "train", "--dataset", "folder", "--root", str(tmp_path / "images"), "--target", "z", "--backbone", "convnet",
        "--batch-size", "2", "--iterations", "1", "--output", str(tmp_path / "runs"),
    ]  # fmt: skip
    code, out, _ = medic(*train, "--dry-run")
    assert code == 0
    assert set(tmp_path.rglob("*")) == before
    assert re.search(r"^sources +x 8 \+ 2, y 8 \+ 2 ", out, re.MULTILINE)
    path = re.search(r"^output +(.*)$", out, re.MULTILINE)[1]
    assert path in medic(*train)[1]
    moved = (tmp_path / "images").rename(tmp_path / "moved")
    code, out, err = medic("train", "--extend", path, "--root", str(moved), "--iterations", "2", "--dry-run")
    assert code == 0, err
    assert re.search(r"^training +2 iterations ", out, re.MULTILINE)


def test_the_default_of_reproduce_is_its_own(medic):
    settings = "settings of the paper's experiments: paper (as in the text) or authors (as in the authors' code)"
    for command, default in (("reproduce", "authors"), ("train", "neither")):
        assert f"{settings} (default: {default})" in " ".join(medic(command, "--help")[1].split())


@pytest.mark.parametrize("command", [["train"], ["sweep"], ["reproduce", "paradigms", "--quick"]])
def test_dry_runs_try_the_network(medic, mini, tmp_path, command):
    """The image size, and whether the weights exist and fit; before any image is read."""
    import torch
    from safetensors.torch import save_file

    if command != ["reproduce", "paradigms", "--quick"]:
        command = [*command, "--dataset", mini, "--target", "street"]
    line = [*command, "--output", str(tmp_path / "runs"), "--dry-run"]
    code, _, err = medic(*line, "--backbone", "convnet", "--image-size", "8")
    assert code == 2
    assert re.search(naming("'convnet' 8 --image-size"), err)
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    for weights in ("gone.safetensors", "other.safetensors"):
        code, _, err = medic(*line, "--backbone", "gfnet_h_ti", "--weights", str(tmp_path / weights))
        assert code == 2
        assert re.search(naming("weights"), err), err
        assert (str(tmp_path / weights) in err) or weights == "other.safetensors"
    assert not (tmp_path / "runs").exists()


def test_without_a_target_no_domain_is_called_one(medic, short):
    code, out, err = medic("train", *(word if word != "street" else "none" for word in short), "--method", "erm")
    assert code == 0
    assert out.splitlines()[0].startswith("held out from ")
    assert "target" not in out.splitlines()[0]
    assert re.search(r"validation Acc [\d.]+; held-out images Acc ", err)
