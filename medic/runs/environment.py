"""A run's environment: the versions, machine, images and command that its results depend on."""

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medic._version import __version__
from medic.runs.layout import ENVIRONMENT
from medic.utils.command import noted_command
from medic.utils.files import file_hash, read_object
from medic.utils.plugins import Plugin

if TYPE_CHECKING:
    from medic.config.plan import Plan
    from medic.data import Dataset


def environment(dataset: "Dataset", plan: "Plan") -> dict[str, Any]:
    """Return the environment of a run that is about to start."""
    import torch

    from medic.utils import distributed

    device = plan.device
    counts = dataset.domain.bincount(minlength=len(dataset.domains)).tolist()
    return {
        "format": 1,
        "medic": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": _versions(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.world(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "precision": plan.precision,
        "images": dataset.hash,
        "counts": dict(zip(dataset.domains, counts, strict=True)),
        "formats": sorted({suffix.lower() for path in dataset.paths if (suffix := Path(path).suffix)}),
        "weights": None if plan.weights is None else file_hash(plan.weights),
        "plugins": [plugin._asdict() for plugin in plan.plugins],
        "command": noted_command(),
    }


def read_environment(path: Path) -> dict[str, Any]:
    """Return the environment recorded in a run directory, or an empty mapping if it cannot be read."""
    return read_object(path / ENVIRONMENT)


def commits(environment: Mapping[str, Any]) -> str | None:
    """Return a run's commit, or all of them as `a+b` if the run was resumed at other commits."""
    resumed = environment.get("resumed")
    parts = [environment, *(resumed if isinstance(resumed, list) else ())]
    hashes = dict.fromkeys(part.get("commit") for part in parts if isinstance(part, Mapping))
    return "+".join(map(str, hashes)) if len(hashes) > 1 else environment.get("commit")


def read_plugins(environment: Mapping[str, Any]) -> list[Plugin]:
    """Return the plug-ins that a run used."""
    return [Plugin(str(one["name"]), str(one["sha256"])) for one in environment["plugins"]]


@cache
def _versions() -> dict[str, str]:
    packages = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "scikit-learn", "matplotlib")
    return {name: version(name) for name in packages}


def commit() -> str | None:
    """Return the commit of the package's source tree, marked `-dirty` if files differ, or None outside a repository."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        described = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return None
    return described.stdout.strip() or None
