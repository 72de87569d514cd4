"""The execution of a run: device, precision, trackers and output."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from medic.errors import MedicError
from medic.fields import Limits, Spec, setting

if TYPE_CHECKING:
    import torch

    from medic.training import Precision


@dataclass(frozen=True, kw_only=True)
class ExecutionSpec(Spec):
    """The device, speed and output of a run; of these settings only the precision changes the result."""

    device: str = setting("auto", "auto, cpu or cuda", choices=("auto", "cpu", "cuda"), local=True)
    precision: str = setting(
        "auto",
        "precision of the network: bf16, tf32 or fp32 (auto: bf16 on a GPU that supports it, else fp32)",
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
    )
    track: str = setting("auto", "experiment trackers: auto, none, or a list of tensorboard, wandb, mlflow", local=True)
    output: str = setting("runs", "directory in which the run's directory is created", local=True)

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
        """Refuse settings that have no effect without a GPU."""
        if device.type != "cuda" and self.capture == "on":
            raise MedicError("capture 'on' needs a GPU: use --capture auto")
        if device.type != "cuda" and self.precision == "tf32":
            raise MedicError("precision 'tf32' needs a GPU: use --precision fp32 or bf16")
