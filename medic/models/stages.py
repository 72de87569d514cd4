"""Backbone stages, whose feature maps decrease in size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from medic.errors import MedicError

OTHERS = "use a ResNet, an EfficientNet or convnet"


class Stage(NamedTuple):
    """A module that returns feature maps of shape (N, C, H, W), and its number of channels C."""

    module: nn.Module
    channels: int

    def check(self, output: Any) -> None:
        """Raise an error unless the output has shape (N, C, H, W). Some networks put channels last, for example."""
        if not isinstance(output, Tensor) or output.dim() != 4 or output.shape[1] != self.channels:
            got = " × ".join(map(str, output.shape[1:])) if isinstance(output, Tensor) else type(output).__name__
            raise MedicError(f"a backbone stage must return maps with {self.channels} channels, got {got}: {OTHERS}")


class Stages(NamedTuple):
    """A backbone's stem, if it has one, and its stages."""

    stem: Stage | None
    stages: tuple[Stage, ...]


def find_stages(module: nn.Module) -> Stages:
    """Return the stages of a built-in network or a convolutional timm model."""
    own, channels = getattr(module, "stages", None), getattr(module, "channels", None)
    if isinstance(own, nn.ModuleList) and isinstance(channels, int):  # such as ConvNet
        return Stages(None, tuple(Stage(part, channels) for part in own))
    described = getattr(module, "feature_info", None)
    entries = list(getattr(described, "info", described) or [])
    reductions = [entry["reduction"] for entry in entries]
    parts = dict(module.named_modules())
    named = all(entry["module"] in parts for entry in entries)  # timm describes some maps that no module returns
    if len(entries) < 2 or reductions != sorted(set(reductions)) or not named:
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
