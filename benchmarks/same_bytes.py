"""Compare the results of two source trees byte by byte: every method, every sampler, and runs that were resumed.

    python benchmarks/same_bytes.py OLD_TREE NEW_TREE

Each tree trains in its own process, one torch thread, on the built-in digits with an 8 px problem of a few iterations;
`model.safetensors` and `predictions.npz` must be equal. Prints one line per run and exits with 1 if any differ.
`--only PATTERN` restricts the runs, `--keep DIR` keeps the outputs of a tree so that the old tree is trained once.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORKER = r"""
import json, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import medic
from medic.training import Trainer

names, output = json.loads(sys.argv[1]), Path(sys.argv[2])
try:
    from medic.methods import METHODS
except ImportError:
    METHODS = medic.METHODS
BASE = dict(dataset="digits", target="street", iterations=3, evaluate_every=3, device="cpu", quiet=True, track="none")
SPECIAL = {"hyprometa": {"hparams": {"trust": 0}}, "mvdg": {"hparams": {"persist_inner_state": 1}}}
runs = {f"method/{name}": dict(method=name, **SPECIAL.get(name, {})) for name in METHODS}
for sampling in ("random", "balanced", "adaptive", "probe", "confusable", "confusable-chain", "informative"):
    runs[f"sampler/medic++/{sampling}"] = dict(method="medic++", sampling=sampling)
    runs[f"sampler/medic/{sampling}"] = dict(method="medic", sampling=sampling)
runs |= {
    "setting/separate-step": dict(method="medic++", separate="step"),
    "setting/balance": dict(method="medic++", penalty="balance", ova_scale=1.0),
    "setting/frozen": dict(method="erm", freeze="backbone"),
    "setting/noise": dict(method="medic", label_noise=0.3, optimizer="adamw", schedule="cosine", warmup=1),
    "setting/resnet": dict(method="medic++", backbone="resnet10t", clip_norm=1.0, head_lr_scale=10.0, images=36),
    "setting/draw": dict(method="vrex", hparams_seed=3, optimizer="adam"),
    "setting/draw-fish": dict(method="fish-domainbed", hparams_seed=2, trial_seed=1),
    "setting/knn": dict(method="erm", score="knn", save_features=True),
    "setting/classes": dict(method="medic", known=list("0123"), unknown=["8", "9"], sources=["handwritten", "printed"]),
    "setting/one-source": dict(method="medic++", sources=["handwritten"], target=None),
    "setting/views": dict(method="mvdg", views=3, images=36),
    "setting/partial": dict(method="medic++", partial="handwritten=0,1,2,3"),
    "setting/domainbed": dict(method="coral", validation="domainbed", holdout=0.3, bn_buffers=None),
    "setting/interpolate": dict(method="fish", backbone="resnet10t", bn_buffers="interpolate", images=36),
    "resumed/medic++": dict(method="medic++"),
    "resumed/fish-domainbed": dict(method="fish-domainbed"),
    "resumed/ebil-hads": dict(method="ebil-hads"),
    "resumed/swad": dict(method="swad"),
}
step = Trainer.step
for name in names if names else runs:
    settings = BASE | runs[name]
    place = output / name.replace("/", "_")
    if name.startswith("resumed"):
        def interrupted(self):
            losses = step(self)
            if self.iteration == 2:
                signal.raise_signal(signal.SIGINT)
            return losses
        Trainer.step = interrupted
        try:
            medic.train(**settings, output=str(place))
        except KeyboardInterrupt:
            pass
        Trainer.step = step
    if (list(place.glob("*/done"))):
        continue
    try:
        medic.train(**settings, output=str(place))
    except Exception as error:
        place.mkdir(parents=True, exist_ok=True)
        (place / "error").write_text(f"{type(error).__name__}: {error}")
    print(name, flush=True)
"""


def train(tree: Path, output: Path, names: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    output.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", WORKER, json.dumps(names), str(output)]
    subprocess.run(command, check=True, env=environment, cwd=output, stdout=subprocess.DEVNULL)


def fingerprints(place: Path) -> dict[str, str]:
    """The hashes of what a run left, or what it failed with."""
    files = [*place.glob("*/model.safetensors"), *place.glob("*/predictions.npz")]
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    found |= {str(index): file.parent.name for index, file in enumerate(files)}  # the hash of the settings
    if (place / "error").exists():
        found["error"] = (place / "error").read_text()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="outputs of the old tree, made if missing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        old = arguments.keep or Path(folder) / "old"
        if not (old / "complete").exists():
            train(arguments.old.absolute(), old, [])
            (old / "complete").touch()
        names = sorted(place.name for place in old.iterdir() if place.is_dir())
        chosen = [name for name in names if fnmatch.fnmatch(name, arguments.only)]
        if not chosen:
            parser.error(f"--only {arguments.only} matches none of {', '.join(names)}")
        new = Path(folder) / "new"
        train(arguments.new.absolute(), new, [name.replace("_", "/", 2 if "sampler" in name else 1) for name in chosen])
        differing = 0
        for name in chosen:
            before, after = fingerprints(old / name), fingerprints(new / name)
            same = before == after and before
            differing += not same
            failed = f" ({before.get('error') or ''} | {after.get('error') or ''})" if "error" in before | after else ""
            print(f"{'identical' if same else 'DIFFERENT':<10} {name}{failed}", flush=True)
    print(f"{len(chosen) - differing} of {len(chosen)} identical")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
