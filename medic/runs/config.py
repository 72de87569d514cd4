"""What a run is asked to do: plain values, which a command line, a YAML file or Python can give.

Nothing here imports torch, and no value can name code.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from medic.errors import MedicError, first_line

ALIASES = {
    "target_domains": "target",
    "source_domains": "sources",
    "known_classes": "known",
    "algorithm": "method",
    "learning_rate": "lr",
    "output_dir": "output",
    "data_dir": "root",
    "holdout_fraction": "holdout",
}
"""Names of settings in other codebases."""
EACH = "each"
"""In a sweep, in place of values: every domain of the dataset, one after the other."""


def setting_name(spelling: str) -> str:
    """The name of a setting that may be spelled as elsewhere, or with hyphens."""
    name = spelling.replace("-", "_")
    return ALIASES.get(name, name)


def _option(default: Any, help: str, *, local: bool = False) -> Any:
    """A field with its line of help. A `local` one does not change the result and is not part of a run's identity."""
    return dataclasses.field(default=default, metadata={"help": help, "local": local})


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run. None means: what the method or the benchmark has."""

    dataset: str = _option("digits", "benchmark (see `medic datasets`)")
    root: str | None = _option(None, "folder or table with the images, for all but the built-in benchmark", local=True)
    image_size: int | None = _option(None, "side of an image in pixels (the benchmark's or the backbone's)")
    store_size: int | None = _option(None, "side at which images are decoded and kept, to crop from (the same)")
    store: str = _option("auto", "where decoded images are kept: gpu, ram, map, stream or auto", local=True)
    on_bad_image: str = _option("error", "what becomes of an image that cannot be read: error or skip")
    target: str | list[str] | None = _option(
        None, "domains that are never trained on; several are evaluated each (all but the sources)"
    )
    sources: list[str] | None = _option(None, "domains to train on (all but the target)")
    split: str | None = _option(None, "known and unknown classes by name: pacs-6-1, and pacs-6-1-partial for --partial")
    known: list[str] | None = _option(None, "known classes (the benchmark's)")
    unknown: list[str] | None = _option(None, "unknown classes (all others)")
    partial: str | dict[str, list[str]] | list[str] | None = _option(
        None, "known classes of a source that lacks some: DOMAIN=CLASS,CLASS for each, or auto for what it has"
    )
    validation: str = _option("cell", "what sources keep for validation: a share per cell, domainbed or official")
    holdout: float | None = _option(None, "share of the sources kept for validation (0.2)")
    trial_seed: int | None = _option(None, "seed of that choice (the seed)")
    label_noise: float | None = _option(
        None, "share of the sources' labels, validation's too, that are made wrong (none)"
    )
    method: str = _option("medic++", "what to train (see `medic methods`)")
    backbone: str | None = _option(None, "convnet, mnist-cnn, gfnet_h_ti or a model of timm (the benchmark's)")
    weights: str | None = _option(
        None,
        "the backbone's weights: a file, safetensors or torch, or timm's by name, imagenet-v1 or a tag like tv_in1k",
        local=True,
    )
    freeze: str | None = _option(None, "train the head alone, on features that are computed once: backbone, or nothing")
    head: str | None = _option(
        None,
        "close, separate, shared, reciprocal, ring, branches or prompted: which head there is (as the objective needs)",
    )
    objective: str | None = _option(None, "ce, ce+ova, ova, or a system's own, arpl, onering, … (the method's)")
    penalty: str | None = _option(None, "term added to the risk: balance, vrex, coral, … (the method's)")
    hparams: dict[str, Any] | str | None = _option(None, "the method's own numbers: weight=10,ema=0.9 (its defaults)")
    hparams_seed: int = _option(0, "DomainBed's draw of lr, weight decay, batch and the method's numbers; 0 for none")
    ova_scale: float | None = _option(None, "factor of the one-vs-all loss: 1 as the paper has it (0.5, as run)")
    score: str | None = _option(
        None, "confidence that ranks and rejects: bcls, cls, max-logit, energy, openmax, knn, … (bcls with ova)"
    )
    threshold: str | None = _option(
        None, "rule for the threshold of rejection: source, fixed, hard or oracle-10 (source, or the system's own)"
    )
    iterations: int = _option(300, "outer updates")
    seed: int = _option(0, "root of all random draws")
    optimizer: str | None = _option(None, "sgd, adam or adamw (the method's)")
    lr: float | None = _option(None, "learning rate of the optimizer (the method's or the benchmark's)")
    inner_lr: float | None = _option(None, "rate of the inner steps (the method's)")
    momentum: float | None = _option(None, "momentum of sgd (the method's)")
    weight_decay: float | None = _option(None, "weight decay (the method's)")
    head_lr_scale: float | None = _option(None, "learning rate of the heads relative to the backbone's (1)")
    clip_norm: float | None = _option(None, "largest norm of the gradient (unlimited)")
    schedule: str | None = _option(None, "step, cosine or constant (the method's)")
    warmup: int = _option(0, "iterations until the learning rate is reached")
    batch_size: int | None = _option(None, "images per task (as many as make up --images)")
    images: int | None = _option(None, "images per iteration, over all tasks (the method's, 144)")
    domain_splits: int | None = _option(
        None, "parts that the source domains are split into; 0 pools them (the method's)"
    )
    class_splits: int | None = _option(None, "parts that the known classes are split into; 0 pools them (the method's)")
    steps: int | list[int] | str | None = _option(
        None, "tasks in each step, 3,3,3, or the number of steps (the method's)"
    )
    repeat: int | None = _option(None, "times that tasks and steps are drawn for one iteration (1, or the method's)")
    sampling: str | None = _option(
        None,
        "how classes are dealt over tasks: random, balanced, adaptive, probe, confusable, confusable-chain or "
        "informative (the method's)",
    )
    axes: dict[str, int] | str | None = _option(None, "further axes of the grid and their splits: hospital=2,year=3")
    separate: str | None = _option(None, "tasks of one domain may share a step, or not: task or step (the method's)")
    class_groups: int | None = _option(None, "split contiguous groups of classes instead of single ones")
    bn_buffers: str | None = _option(None, "batch-norm statistics after inner steps: keep, interpolate or restore")
    augment: str | dict[str, Any] | None = _option(
        None, "recipe for training images: medic, domainbed, digits or none, or numbers, scale=0.8:1,jitter=0.4"
    )
    layer: str | None = _option(None, "put inside the backbone: mixstyle, aloft-e, aloft-s or none (the method's)")
    averaging: str | None = _option(None, "weights to average: swad or none (the method's)")
    evaluate_every: int | None = _option(None, "iterations between evaluations (300, or a fifth of a short run)")
    checkpoint_every: int | None = _option(
        None, "iterations between checkpoints (as many as a minute has; always at an evaluation)", local=True
    )
    views: int = _option(1, "random views of an image at test time, whose outputs are averaged: 32 as MVDG has it")
    save_features: bool = _option(
        False, "keep features in predictions.npz, of training images too: scores are fitted on them"
    )
    device: str = _option("auto", "auto, cpu or cuda", local=True)
    precision: str = _option(
        "auto", "of the network's products: bf16, tf32 or fp32 (bf16 on a GPU that has it, else fp32)"
    )
    batch_norm: str | None = _option(
        None, "statistics: local to each process, sync over all, or frozen as they came (the method's)"
    )
    capture: str = _option("auto", "an iteration as one CUDA graph: auto, on or off", local=True)
    compile: str = _option(
        "auto", "the network by torch.compile: auto (on a GPU, if the run is long), on or off", local=True
    )
    track: str = _option(
        "auto",
        "where numbers go besides: tensorboard, wandb, mlflow, several or none (tensorboard if there)",
        local=True,
    )
    output: str = _option("runs", "directory that the run's own directory is made in", local=True)

    @property
    def target_names(self) -> str:
        """The target, or several of them, in one line."""
        return ", ".join([self.target] if isinstance(self.target, str) else self.target or [])

    def identity(self) -> dict[str, Any]:
        """The settings that change the result."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if not f.metadata["local"]}

    def to_yaml(self) -> str:
        """As a configuration file."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, path: Path) -> "RunConfig":
        """Read back what `to_yaml` wrote."""
        try:
            return cls(**read_yaml(path))
        except TypeError as error:
            raise MedicError(f"configuration {path} is not one of this version: {error}") from error


_CALLED: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list[str]: "a list of names",
    list[int]: "a list of whole numbers",
    dict[str, int]: "names with whole numbers",
    dict[str, list[str]]: "names with lists",
    dict[str, Any]: "names with values",
}
"""What the types of settings are called."""


@cache
def _kinds(name: str) -> tuple[Any, ...]:
    """The types that a setting may be of."""
    hint = get_type_hints(RunConfig)[name]
    return get_args(hint) if get_origin(hint) is UnionType else (hint,)


def check_kinds(config: RunConfig) -> None:
    """Refuse values of another type than their setting has, as a file or a program may hold them."""
    for each in dataclasses.fields(config):
        value, kinds = getattr(config, each.name), _kinds(each.name)
        if not any(_fits(value, kind) for kind in kinds):
            wanted = " or ".join(_CALLED[kind] for kind in kinds if kind is not NoneType)
            several = isinstance(value, list | tuple) and not any(get_origin(kind) is list for kind in kinds)
            hint = "; a sweep has several values of a setting under `span`" if several else ""
            raise MedicError(f"{each.name} is {value!r}: give {wanted}{hint}")


def _fits(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    if kind == list[str] and not isinstance(value, list | tuple):  # one name, or several with commas
        value = [value]
    if get_origin(kind) is list:
        return isinstance(value, list | tuple) and all(_fits(part, parts[0]) or type(part) is int for part in value)
    if get_origin(kind) is dict:
        return isinstance(value, Mapping) and all(_fits(part, parts[1]) for part in value.values())
    taken = {str: (str, os.PathLike), float: (int, float)}.get(kind, kind)
    return kind is Any or (isinstance(value, taken) and (kind is bool or not isinstance(value, bool)))


class Loader(yaml.SafeLoader):
    """Reads plain values, and takes 1e-3 for a number, which YAML itself does only with a point in it."""


Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+"), list("-+0123456789"))


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings in a YAML file, by name."""
    try:
        values = yaml.load(path.read_text(), Loader)  # a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise unreadable("configuration", path, error) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise MedicError(f"configuration {path} does not hold settings, a line `name: value` for each")
    return values


def unreadable(what: str, path: Path, error: Exception) -> MedicError:
    """The error to raise where a YAML file cannot be read: on which line, and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return MedicError(f"{what} {path} cannot be read: {getattr(error, 'strerror', None) or first_line(error)}")
    begun = "" if error.context_mark is None else f", {error.context} that begins on line {error.context_mark.line + 1}"
    return MedicError(f"{what} {path}, line {mark.line + 1}: {error.problem}{begun}")
