"""The execution of a run: device, precision, trackers and output."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice, warn
from medic.utils.parts import Limits

if TYPE_CHECKING:
    import torch

    from medic.training import Precision

_NAME = re.compile(r"\w[\w.+=,@-]*")
_RESERVED = re.compile(r"logs|[0-9a-f]{16}")
"""Names of other directories in the output: logs of a sweep, and runs without a name."""
TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Experiment trackers, by the package that each requires."""


def check_trackers(names: str) -> list[str]:
    """Return the trackers in a comma-separated list, installed or not; an empty list for `auto` and `none`."""
    if names in ("auto", "none"):
        return []
    return [check_choice("tracker", name, ["auto", "none", *TRACKERS]) for name in names.split(",")]


@dataclass(frozen=True, kw_only=True)
class ExecutionSpec(Spec):
    """The device, speed and output of a run; of these settings only the precision changes the result."""

    device: str = setting("auto", "auto, cpu or cuda", choices=("auto", "cpu", "cuda"), local=True)
    precision: str = setting(
        "auto",
        "precision of the network: fp32, tf32, bf16, or auto, which is bf16 on a GPU that supports it and else fp32",
        choices=("auto", "fp32", "tf32", "bf16"),
    )
    capture: str = setting(
        "auto", "capture an iteration as one CUDA graph: auto, on or off", choices=("auto", "on", "off"), local=True
    )
    compile: str = setting(
        "auto",
        "compile the network by torch.compile: auto (on a GPU, for long runs), on or off",
        choices=("auto", "on", "off"),
        local=True,
    )
    threads: int | None = setting(
        None,
        "threads on the CPU, kept when a run resumes; another number changes the last digits (default: all cores, "
        "or a share of them in a sweep)",
        limits=Limits(1, 1024),
        local=True,
        takes="N",
    )
    track: str = setting(
        "auto", "experiment trackers: auto, none, or a list of tensorboard, wandb, mlflow", local=True, takes="NAME,…"
    )
    output: str = setting("runs", "directory in which the run's directory is created", local=True, takes="DIR")
    name: str | None = setting(
        None, "name of the run's directory in the output (default: a hash of what changes the result)", local=True
    )

    def pick_device(self) -> "torch.device":
        """Return the device; `auto` is a GPU if there is one."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise MedicError("device 'cuda': torch finds no GPU; use --device cpu")
        if self.device == "cpu" or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def pick_precision(self, device: "torch.device") -> "Precision":
        """Return the precision on a device."""
        from medic.training import pick_precision

        return pick_precision(self.precision, device)

    def check(self, device: "torch.device") -> None:
        """Refuse settings that have no effect without a GPU, and bad names; warn of a precision that is slow here."""
        from medic.training import emulates_bf16

        if device.type != "cuda" and self.capture == "on":
            raise MedicError("capture 'on' needs a GPU: use --capture auto")
        if device.type != "cuda" and self.precision == "tf32":
            raise MedicError("precision 'tf32' needs a GPU: use --precision fp32 or bf16")
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise MedicError(f"name {self.name!r}: give one of letters and digits; _ . + = , @ - may follow")
        if self.name is not None and _RESERVED.fullmatch(self.name):
            raise MedicError(f"name {self.name!r} may be that of another run or of logs: choose another --name")
        if self.precision == "bf16" and emulates_bf16(device):
            warn("this CPU emulates bf16, which is about a hundred times slower than fp32: use --precision fp32")
