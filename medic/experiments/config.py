"""What a run is asked to do: plain values, which a command line, a YAML file or Python can give.

Nothing here imports torch, and no value can name code.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medic.errors import MedicError


def _option(default: Any, help: str, *, local: bool = False) -> Any:
    """A field with its line of help. A `local` one does not change the result and is not part of a run's identity."""
    return dataclasses.field(default=default, metadata={"help": help, "local": local})


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run. None means: what the method or the benchmark has."""

    dataset: str = _option("digits", "benchmark (see `medic datasets`)")
    target: str | None = _option(None, "the domain that is never trained on")
    sources: list[str] | None = _option(None, "domains to train on (all others)")
    known: list[str] | None = _option(None, "known classes (the benchmark's)")
    holdout: float = _option(0.2, "share of each source domain kept for validation")
    method: str = _option("medic++", "what to train (see `medic methods`)")
    backbone: str | None = _option(None, "convnet, mnist-cnn or a model of timm (the benchmark's)")
    weights: str | None = _option(None, "file with the backbone's weights: safetensors or torch", local=True)
    head: str | None = _option(
        None, "close, separate or shared: which heads the classifier has (as the objective needs)"
    )
    objective: str | None = _option(None, "ce, ce+ova or ova (the method's)")
    ova_scale: float = _option(0.5, "factor of the one-vs-all loss: 0.5 as the authors ran, 1 as the paper has it")
    score: str | None = _option(
        None, "confidence that ranks and rejects: bcls, cls, max-logit or energy (bcls with ova)"
    )
    threshold: str = _option("source", "rule for the threshold of rejection: source, fixed or oracle-10")
    iterations: int = _option(300, "outer updates")
    seed: int = _option(0, "root of all random draws")
    optimizer: str | None = _option(None, "sgd, adam or adamw (the method's)")
    lr: float | None = _option(None, "learning rate of the optimizer (the method's or the benchmark's)")
    inner_lr: float | None = _option(None, "rate of the inner steps (the method's)")
    momentum: float | None = _option(None, "momentum of sgd (the method's)")
    weight_decay: float | None = _option(None, "weight decay (the method's)")
    head_lr_scale: float = _option(1.0, "learning rate of the heads relative to the backbone's")
    clip_norm: float | None = _option(None, "largest norm of the gradient (unlimited)")
    schedule: str | None = _option(None, "step, cosine or constant (the method's)")
    warmup: int = _option(0, "iterations until the learning rate is reached")
    batch_size: int | None = _option(None, "images per task (144 over all tasks)")
    domain_splits: int | None = _option(None, "parts that the source domains are split into (the method's)")
    class_splits: int | None = _option(None, "parts that the known classes are split into (the method's)")
    steps: int | list[int] | str | None = _option(
        None, "tasks in each step, 3,3,3, or the number of steps (the method's)"
    )
    sampling: str | None = _option(None, "how classes are dealt over tasks: random or adaptive (the method's)")
    separate: str = _option("task", "what adaptive sampling puts confusable classes into: different task or step")
    class_groups: int | None = _option(None, "split contiguous groups of classes instead of single ones")
    bn_buffers: str | None = _option(None, "batch-norm statistics after inner steps: keep, interpolate or restore")
    augment: str | None = _option(None, "recipe for training images: digits or none (the benchmark's)")
    evaluate_every: int | None = _option(None, "iterations between evaluations (300, or a fifth of a short run)")
    checkpoint_every: int = _option(100, "iterations between checkpoints", local=True)
    save_features: bool = _option(False, "keep the backbone's features in predictions.npz")
    device: str = _option("auto", "auto, cpu or cuda", local=True)
    output: str = _option("runs", "directory that the run's own directory is made in", local=True)

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
            values = yaml.safe_load(path.read_text())
            return cls(**values)
        except (OSError, TypeError, yaml.YAMLError) as error:
            raise MedicError(f"configuration {path} cannot be read: {str(error).splitlines()[0]}") from error
