"""The execution of a run: device, precision, trackers and output."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from medic.config.fields import PathLike, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import Limits

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "tf32", "bf16"]
Switch = Literal["auto", "on", "off"]

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Experiment trackers, by the package that each requires."""

_NAME = re.compile(r"\w[\w.+=,@-]*")
_RESERVED = re.compile(r"logs|[0-9a-f]{16}")
"""Names of other directories in the output: logs of a sweep, and runs without a name."""


class ExecutionSettings(TypedDict, total=False):
    """Settings for the execution. All of them are optional."""

    device: Annotated[Device, setting("auto, cpu or cuda", "auto", local=True)]
    precision: Annotated[
        Precision,
        setting(
            "precision of the network: fp32, tf32, bf16, or auto, which is bf16 on a GPU that supports it and else "
            "fp32",
            "auto",
        ),
    ]
    capture: Annotated[Switch, setting("capture an iteration as one CUDA graph: auto, on or off", "auto", local=True)]
    compile: Annotated[
        Switch,
        setting(
            "compile the network with torch.compile: auto (on a GPU, for long runs), on or off", "auto", local=True
        ),
    ]
    recompute: Annotated[
        bool,
        setting(
            "compute activations again in the backward pass, which saves memory (gradient checkpointing)",
            False,
            local=True,
        ),
    ]
    threads: Annotated[
        int,
        setting(
            "threads on the CPU, kept when a run resumes; another number changes the last digits",
            default_rule="all cores, or a share of them in a sweep",
            limits=Limits(1, 1024),
            local=True,
            takes="N",
        ),
    ]
    track: Annotated[
        str,
        setting(
            "experiment trackers: auto, none, or a list of tensorboard, wandb, mlflow",
            "auto",
            local=True,
            takes="NAME,…",
        ),
    ]
    output: Annotated[
        PathLike, setting("directory in which the run's directory is created", "runs", local=True, takes="DIR")
    ]
    name: Annotated[
        str,
        setting(
            "name of the run's directory in the output",
            default_rule="a hash of what changes the result",
            local=True,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """The device, speed and output of a run; of these settings only the precision changes the result."""

    device: Device
    precision: Precision
    capture: Switch
    compile: Switch
    recompute: bool
    threads: int | None
    """None leaves torch's own number."""
    track: str
    output: str
    name: str | None
    """None names the directory by the hash of the run."""

    def __post_init__(self) -> None:
        check_trackers(self.track)
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise MedicError(f"name {self.name!r}: give one of letters and digits; _ . + = , @ - may follow")
        if self.name is not None and _RESERVED.fullmatch(self.name):
            raise MedicError(f"name {self.name!r} may be that of another run or of logs: choose another --name")


def check_trackers(names: str) -> list[str]:
    """Return the trackers in a comma-separated list, installed or not; an empty list for `auto` and `none`."""
    if names in ("auto", "none"):
        return []
    return [check_choice("tracker", name, ["auto", "none", *TRACKERS]) for name in names.split(",")]
