"""Compare the results of two source trees: all methods and samplers, and runs that are resumed, extended or averaged.

    python -m benchmarks.same_bytes OLD_TREE NEW_TREE --jobs 2

Each tree trains in processes of its own with one torch thread, through `medic.train` and the command line alone. Most
runs are a few iterations on small images that are drawn here; the others use the built-in digits. The tensors of
`model.safetensors` and the arrays of `predictions.npz` must be equal in name, type, shape and bytes; other files,
metadata and hashes of settings are not compared. Prints one line per run. A run that fails in either tree counts as
different, and the exit code is then 1.

`--only PATTERN` restricts the runs. `--keep DIR` keeps the outputs of the old tree, so that it is trained once.
"""

import argparse
import contextlib
import fnmatch
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

DOMAINS, CLASSES, IMAGES, SIDE = ("chalk", "ink", "neon", "sand"), tuple("abcdefgh"), 10, 32
KNOWN, UNKNOWN = list(CLASSES[:6]), list(CLASSES[6:])
SAMPLERS = ("random", "balanced", "adaptive", "probe", "confusable", "confusable-chain", "informative")
PACKAGES = ("torch", "torchvision", "timm", "numpy")
"""Packages of which other versions may change the results."""

Action = tuple[str, Any]
"""`train` or `interrupt` with settings, or `command` with the words after `medic`."""


def make_inputs(folder: Path) -> None:
    """Draw images of stripes, with a pattern per class and colours per domain, and write weights of two networks."""
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    import medic

    random = np.random.default_rng(0)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    for domain in DOMAINS:
        paint, paper = random.uniform(0, 255, (2, 3))
        for number, name in enumerate(CLASSES):
            angle, waves = np.pi * number / len(CLASSES), 2 + number % 3
            place = folder / "images" / domain / name
            place.mkdir(parents=True)
            for index in range(IMAGES):
                phase = random.uniform(0, 2 * np.pi)
                stripes = np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle)) + phase)[..., None] > 0
                pixels = np.where(stripes, paint, paper) + random.normal(0, 20, (SIDE, SIDE, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{index}.png")
    torch.manual_seed(0)
    for name in ("resnet10t", "vit_tiny_patch16_224"):
        network = medic.create_backbone(name, size=SIDE).module
        save_file(network.state_dict(), folder / f"{name}.safetensors")


def make_runs(methods: Sequence[str], inputs: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of all runs that are trained once, by name."""
    special: Mapping[str, dict[str, Any]] = {
        "hyprometa": {"hparams": {"trust": 0}},
        "mvdg": {"hparams": {"persist_inner_state": 1}, "views": 3},
    }
    runs = {f"method/{name}": {"method": name, **special.get(name, {})} for name in methods}
    for method in ("medic", "medic++"):
        runs |= {f"sampler/{method}/{sampling}": {"method": method, "sampling": sampling} for sampling in SAMPLERS}
    resnet = {"backbone": "resnet10t", "weights": str(inputs / "resnet10t.safetensors")}
    vit = {"backbone": "vit_tiny_patch16_224", "weights": str(inputs / "vit_tiny_patch16_224.safetensors")}
    digits = {"dataset": "digits", "target": "street", "root": None, "known": None, "unknown": None, "backbone": None}
    return runs | {
        "setting/digits": {"method": "medic++", **digits},
        "setting/images": {"method": "medic++", "images": None},
        "setting/separate-step": {"method": "medic++", "separate": "step"},
        "setting/balance": {"method": "medic++", "penalty": "balance", "ova_scale": 1.0},
        "setting/paper": {"method": "medic++", "protocol": "paper", "iterations": 3},
        "setting/authors": {"method": "medic++", "protocol": "authors", "iterations": 3},
        "setting/frozen": {"method": "erm", "tune": "head"},
        "setting/noise": {
            "method": "medic", "label_noise": 0.3, "optimizer": "adamw", "schedule": "cosine", "warmup": 1,
        },
        "setting/resnet": {"method": "medic++", "backbone": "resnet10t", "clip_norm": 1.0, "head_lr_scale": 10.0},
        "setting/draw": {"method": "vrex", "hparams_seed": 3, "optimizer": "adam", "images": None},
        "setting/draw-fish": {"method": "fish-domainbed", "hparams_seed": 2, "trial_seed": 1, "images": None},
        "setting/knn": {"method": "erm", "score": "knn", "save_features": True},
        "setting/mahalanobis": {"method": "medic++", "score": "mahalanobis", "threshold": "two-components"},
        "setting/classes": {"method": "medic", "known": list("abcd"), "unknown": ["h"], "sources": ["chalk", "ink"]},
        "setting/one-source": {"method": "medic++", "sources": ["chalk"], "target": None},
        "setting/no-target": {"method": "medic++", "target": "none"},
        "setting/two-targets": {"method": "medic++", "target": ["sand", "neon"]},
        "setting/partial": {"method": "medic++", "partial": "chalk=a,b,c,d"},
        "setting/domainbed": {"method": "coral", "validation": "domainbed", "holdout": 0.3, "augment": "domainbed"},
        "setting/interpolate": {"method": "fish", "backbone": "resnet10t", "bn_buffers": "interpolate"},
        "setting/averages": {"method": "erm", "averaging": "ema", "iterations": 6, "evaluate_every": 2},
        "setting/swad": {"method": "medic++", "averaging": "swad", "iterations": 12, "evaluate_every": 1},
        "weights/resnet": {"method": "medic++", **resnet},
        "weights/resnet-erm": {"method": "erm", **resnet, "batch_norm": "local"},
        "weights/resnet-frozen": {"method": "medic++", **resnet, "tune": "head"},
        "weights/miro": {"method": "miro", **resnet},
        "weights/vit": {"method": "medic++", **vit},
    }  # fmt: skip


def make_actions(methods: Sequence[str], inputs: Path) -> dict[str, list[Action]]:
    """Return what is done in the folder of each run, by its name; actions of a run follow each other."""
    usual = {
        "dataset": "folder", "root": str(inputs / "images"), "target": "sand", "known": KNOWN, "unknown": UNKNOWN,
        "backbone": "convnet", "image_size": SIDE, "images": 36, "iterations": 3, "evaluate_every": 3, "device": "cpu",
        "track": "none", "quiet": True, "output": ".", "name": "run",
    }  # fmt: skip
    own = {"aloft-e": {"backbone": "gfnet_h_ti"}, "aloft-s": {"backbone": "gfnet_h_ti"}}

    def settings(chosen: Mapping[str, Any]) -> dict[str, Any]:
        return {**usual, **own.get(chosen["method"], {}), **chosen}

    actions: dict[str, list[Action]] = {
        name: [("train", settings(run))] for name, run in make_runs(methods, inputs).items()
    }
    for method in ("medic++", "fish-domainbed", "ebil-hads", "swad"):
        run = settings({"method": method, "iterations": 4, "evaluate_every": 2})
        actions[f"resumed/{method}"] = [("interrupt", run), ("train", run)]
    for method in ("medic++", "erm"):
        short = settings({"method": method, "name": "short"})
        longer = "train --extend short --iterations 6 --output . --name long --quiet --track none".split()
        actions[f"extended/{method}"] = [("train", short), ("command", longer)]
    weights = str(inputs / "resnet10t.safetensors")
    both = [
        settings({"method": "medic++", "backbone": "resnet10t", "weights": weights, "lr": rate, "name": name})
        for name, rate in (("first", 1e-3), ("second", 2e-3))
    ]
    blend = "soup first second --output . --name soup --device cpu".split()
    actions["soup/medic++"] = [*(("train", run) for run in both), ("command", blend)]
    words = "train --dataset folder --target sand --method medic++ --backbone convnet --image-size 32 --iterations 3"
    command = [*words.split(), "--root", str(inputs / "images"), "--known", *KNOWN, "--output", ".", "--name", "run"]
    actions["command/medic++"] = [("command", [*command, "--device", "cpu", "--track", "none", "--quiet"])]
    return actions


@contextlib.contextmanager
def interrupting(step: int) -> Iterator[None]:
    """Raise the signal of Ctrl-C after so many steps of an optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = itertools.count(1)

    def stop(*_: Any) -> None:
        if next(steps) == step:
            signal.raise_signal(signal.SIGINT)

    hook = register_optimizer_step_post_hook(stop)
    try:
        yield
    finally:
        hook.remove()


def spelled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names in the tree: `tune="head"` was `freeze="backbone"`."""
    if settings.get("tune") != "head" or importlib.util.find_spec("medic.models.tuning"):
        return dict(settings)
    return {**{name: value for name, value in settings.items() if name != "tune"}, "freeze": "backbone"}


def perform(kind: str, what: Any) -> None:
    """Do one action in the working directory."""
    import medic

    if kind == "command":
        finished = subprocess.run([sys.executable, "-P", "-m", "medic", *what], capture_output=True, text=True)
        if not Path(what[what.index("--name") + 1], "model.safetensors").exists():  # 1 is also that it learned nothing
            raise RuntimeError(f"exit code {finished.returncode}: {finished.stderr.strip()}")
    elif kind == "train":
        medic.train(**spelled(what))
    else:
        try:
            with interrupting(2):
                medic.train(**spelled(what))
        except KeyboardInterrupt:
            return
        raise RuntimeError("the run was not interrupted")


def work(output: Path, inputs: Path, claims: Path, pattern: str) -> None:
    """Train the missing runs that no other process has claimed, with the tree that Python imports."""
    import torch

    import medic

    if not Path(medic.__file__).is_relative_to(os.environ["PYTHONPATH"]):
        raise SystemExit(f"Python imports {medic.__file__} in place of the tree's package")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell ignores for jobs in the background
    torch.set_num_threads(1)
    actions = make_actions(list(medic.METHODS), inputs)
    for name in fnmatch.filter(actions, pattern):
        place = output / name
        if (place / "finished").exists():
            continue
        try:
            (claims / name.replace("/", "_")).touch(exist_ok=False)
        except FileExistsError:
            continue
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        began = time.monotonic()
        try:
            with contextlib.chdir(place), Path("log").open("w") as log, contextlib.redirect_stderr(log):
                for kind, what in actions[name]:
                    perform(kind, what)
            (place / "finished").touch()
        except Exception as error:
            (place / "failed").write_text(f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}")
        print(f"  {name}, {time.monotonic() - began:.0f} s", flush=True)


def train(tree: Path, output: Path, inputs: Path, pattern: str, jobs: int) -> None:
    """Train the missing runs of a tree, in several processes that have a cache of their own."""
    print(f"{tree}:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        cache, claims = Path(folder) / "cache", Path(folder) / "claims"
        claims.mkdir()
        words = ["work", str(output), str(inputs), str(claims), pattern]
        processes = [start(tree, words, MEDIC_CACHE=str(cache)) for _ in range(jobs)]
        codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"a process that trains with {tree} ended with {max(map(abs, codes))}")


def start(tree: Path, words: Sequence[str], **variables: str) -> "subprocess.Popen[bytes]":
    """Start this script with the package of a tree: `inputs` or `work`, and their arguments."""
    if not (tree / "medic" / "__init__.py").exists():
        raise SystemExit(f"{tree} has no package medic")
    usual = {"PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen([sys.executable, "-P", __file__, *words], env={**os.environ, **usual, **variables})


def contents(place: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Return the tensors and arrays that a run left: type, shape and bytes by file and name."""
    import numpy as np
    from safetensors import deserialize

    values: dict[str, tuple[str, list[int], bytes]] = {}
    for path in sorted(place.rglob("model.safetensors")):
        for name, tensor in deserialize(path.read_bytes()):
            key = f"{path.relative_to(place)}: {name}"
            values[key] = (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
    for path in sorted(place.rglob("predictions.npz")):
        with np.load(path) as arrays:
            for name, array in arrays.items():
                values[f"{path.relative_to(place)}: {name}"] = (str(array.dtype), list(array.shape), array.tobytes())
    return values


def compare(old: Path, new: Path) -> str:
    """Return what differs between the outputs of a run in two trees; an empty text if they are identical."""
    failed = [
        f"the {age} tree failed: {(place / 'failed').read_text().splitlines()[0]}"
        for age, place in (("old", old), ("new", new))
        if (place / "failed").exists()
    ]
    if failed:
        return "; ".join(failed)
    before, after = contents(old), contents(new)
    files = {name.partition(":")[0].rpartition("/")[2] for name in before}
    if files != {"model.safetensors", "predictions.npz"}:
        return f"the old tree left {', '.join(sorted(files)) or 'nothing'}"
    differing = [name for name in before | after if before.get(name) != after.get(name)]
    return "" if not differing else f"{len(differing)} of {len(before | after)} arrays, first {differing[0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="runs to compare, as in 'sampler/*'")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="outputs of the old tree, made if missing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that train at the same time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        inputs, new = Path(folder) / "inputs", Path(folder) / "new"
        if start(arguments.old.absolute(), ["inputs", str(inputs)]).wait():
            raise SystemExit("the inputs could not be made")
        old = (arguments.keep or Path(folder) / "old").absolute()
        versions = {name: version(name) for name in PACKAGES}
        record = old / "versions.json"
        if record.exists() and json.loads(record.read_text()) != versions:
            parser.error(f"{old} was made with other versions of packages: remove it")
        for tree, output in ((arguments.old, old), (arguments.new, new)):
            output.mkdir(parents=True, exist_ok=True)
            (output / "versions.json").write_text(json.dumps(versions))
            began = time.monotonic()
            train(tree.absolute(), output, inputs, arguments.only, arguments.jobs)
            print(f"  {time.monotonic() - began:.0f} s in all", flush=True)
        places = {path.parent for root in (old, new) for path in root.rglob("*") if path.name in ("finished", "failed")}
        names = {str(place.relative_to(root)) for place in places for root in (old, new) if place.is_relative_to(root)}
        chosen = sorted(name for name in names if fnmatch.fnmatch(name, arguments.only))
        if not chosen:
            parser.error(f"--only {arguments.only} matches no run")
        differences = {name: compare(old / name, new / name) for name in chosen}
    for name, difference in differences.items():
        print(f"{'DIFFERENT' if difference else 'identical':<10} {name}{difference and ': '}{difference}")
    differing = sum(map(bool, differences.values()))
    print(f"{len(chosen) - differing} of {len(chosen)} identical")
    return 1 if differing else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["inputs"]:
        make_inputs(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["work"]:
        work(Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
    else:
        sys.exit(main())
