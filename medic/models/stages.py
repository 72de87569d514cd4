"""Backbone stages, whose feature maps decrease in size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from medic.errors import MedicError

OTHERS = "use a ResNet, an EfficientNet or convnet"


class Stage(NamedTuple):
    """A module that returns feature maps of shape (N, C, H, W), and its number of channels C."""

    module: nn.Module
    channels: int

    def check(self, output: Tensor) -> None:
        """Raise an error unless the output has shape (N, C, H, W). Some networks put channels last, for example."""
        if output.dim() != 4 or output.shape[1] != self.channels:
            shape = " × ".join(map(str, output.shape[1:]))
            raise MedicError(f"a backbone stage must return maps with {self.channels} channels, got {shape}: {OTHERS}")


class Stages(NamedTuple):
    """A backbone's stem, if it has one, and its stages."""

    stem: Stage | None
    stages: tuple[Stage, ...]


def find_stages(module: nn.Module) -> Stages:
    """Return the stages of a built-in network or a convolutional timm model."""
    own = getattr(module, "stages", None)
    if isinstance(own, nn.ModuleList) and not hasattr(module, "feature_info"):
        return Stages(None, tuple(Stage(part, int(module.channels)) for part in own))  # type: ignore[arg-type]
    described = getattr(module, "feature_info", None)
    entries = list(getattr(described, "info", described) or [])
    reductions = [entry["reduction"] for entry in entries]
    if len(entries) < 2 or reductions != sorted(set(reductions)):
        raise MedicError(
            f"expected a backbone whose stages shrink the feature map, got {type(module).__name__}: {OTHERS}"
        )
    # timm's ResNets list the map before the stem's pooling, but the first stage starts after the pooling.
    first, *others = (Stage(module.get_submodule(entry["module"]), entry["num_chs"]) for entry in entries)
    if reductions[0] >= 4:
        return Stages(None, (first, *others))
    pool = getattr(module, "maxpool", None)
    return Stages(first._replace(module=pool) if isinstance(pool, nn.Module) else first, tuple(others))


@contextmanager
def collected(stages: Sequence[Stage]) -> Iterator[list[Tensor]]:
    """Collect the feature maps of stages during a forward pass, in the order of computation."""
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
