"""The stages of a backbone: maps of decreasing size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from medic.errors import MedicError

OTHERS = "use a ResNet, an EfficientNet or convnet"


class Stage(NamedTuple):
    """A module whose output is a map (N, C, H, W), and its number C of channels."""

    module: nn.Module
    channels: int

    def check(self, output: Tensor) -> None:
        """Refuse outputs that are not such maps: some networks have channels last, or no positions."""
        if output.dim() != 4 or output.shape[1] != self.channels:
            shape = " × ".join(map(str, output.shape[1:]))
            raise MedicError(f"a stage of this backbone gives {shape}, not maps of {self.channels} channels: {OTHERS}")


class Stages(NamedTuple):
    """A backbone's stem, if it has one, and its stages."""

    stem: Stage | None
    stages: tuple[Stage, ...]


def find_stages(module: nn.Module) -> Stages:
    """Return the stages of one of our networks or of timm's convolutional ones."""
    own = getattr(module, "stages", None)
    if isinstance(own, nn.ModuleList) and not hasattr(module, "feature_info"):
        return Stages(None, tuple(Stage(part, int(module.channels)) for part in own))  # type: ignore[arg-type]
    described = getattr(module, "feature_info", None)
    entries = list(getattr(described, "info", described) or [])
    reductions = [entry["reduction"] for entry in entries]
    if len(entries) < 2 or reductions != sorted(set(reductions)):
        raise MedicError(f"{type(module).__name__} has no stages of maps of decreasing size: {OTHERS}")
    # Timm's ResNets list the map before the stem's pooling; the first stage begins behind it.
    first, *others = (Stage(module.get_submodule(entry["module"]), entry["num_chs"]) for entry in entries)
    if reductions[0] >= 4:
        return Stages(None, (first, *others))
    pool = getattr(module, "maxpool", None)
    return Stages(first._replace(module=pool) if isinstance(pool, nn.Module) else first, tuple(others))


@contextmanager
def collected(stages: Sequence[Stage]) -> Iterator[list[Tensor]]:
    """Collect the maps of some stages, in the order in which the forward pass inside computes them."""
    maps: list[Tensor] = []

    def keep(stage: Stage, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        stage.check(output)
        maps.append(output)

    hooks = [stage.module.register_forward_hook(partial(keep, stage)) for stage in stages]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()
