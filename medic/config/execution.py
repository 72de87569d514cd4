"""Settings for the execution: device, precision, trackers and output."""

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
"""Experiment trackers, named after the package that each requires."""

_NAME = re.compile(r"\w[\w.+=,@-]*")
_RESERVED = re.compile(r"logs|[0-9a-f]{16}")
"""Names reserved for other directories in the output folder: the logs of a sweep, and unnamed runs."""


class ExecutionSettings(TypedDict, total=False):
    """Settings for the execution. All of them are optional."""

    device: Annotated[Device, setting("device: auto, cpu or cuda", "auto", local=True)]
    precision: Annotated[
        Precision,
        setting(
            "network precision: fp32, tf32, bf16, or auto (bf16 on a GPU that supports it, otherwise fp32)",
            "auto",
        ),
    ]
    capture: Annotated[Switch, setting("capture each iteration as one CUDA graph: auto, on or off", "auto", local=True)]
    compile: Annotated[
        Switch,
        setting(
            "compile the network with torch.compile: auto (on a GPU, for long runs), on or off", "auto", local=True
        ),
    ]
    recompute: Annotated[
        bool,
        setting(
            "recompute activations in the backward pass to save memory (gradient checkpointing)",
            False,
            local=True,
        ),
    ]
    threads: Annotated[
        int,
        setting(
            "number of CPU threads, kept on resume; a different number changes the last digits of the result",
            default_rule="all cores; in a sweep, an equal share",
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
        PathLike, setting("directory in which to create the run directory", "runs", local=True, takes="DIR")
    ]
    name: Annotated[
        str,
        setting(
            "name of the run directory",
            default_rule="a hash of the settings that affect the result",
            local=True,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """The device, speed and output of a run. Only the precision affects the result."""

    device: Device
    precision: Precision
    capture: Switch
    compile: Switch
    recompute: bool
    threads: int | None
    """None for torch's default."""
    track: str
    output: str
    name: str | None
    """None to name the run directory after the run's hash."""

    def __post_init__(self) -> None:
        check_trackers(self.track)
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise MedicError(
                f"--name must consist of letters, digits and _ . + = , @ - and start with a letter, digit or _, got "
                f"{self.name!r}"
            )
        if self.name is not None and _RESERVED.fullmatch(self.name):
            raise MedicError(f"name {self.name!r} is reserved for unnamed runs and logs: choose another --name")


def check_trackers(names: str) -> list[str]:
    """Return the trackers in a comma-separated list, installed or not. Empty for `auto` and `none`."""
    if names in ("auto", "none"):
        return []
    return [check_choice("tracker", name, ["auto", "none", *TRACKERS]) for name in names.split(",")]
