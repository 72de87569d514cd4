"""MixStyle (Zhou et al. 2021): mix the styles of images inside the network."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic.errors import MedicError
from medic.models.stages import OTHERS, collected, find_stages
from medic.utils.modules import DeclaredModule, evaluating
from medic.utils.parts import hyperparameter

SMALLEST = 8
"""Minimum side of a feature map to mix. Smaller maps have too few positions for statistics."""


@dataclass(eq=False)
class MixStyle(DeclaredModule):
    """A training layer that mixes each image's channel means and deviations with those of another image in the batch.

    Each call mixes styles with probability `p`, using a mixing weight drawn from Beta(α, α) for each image. No
    gradient flows through the statistics. The layer is inserted after the first `stages` stages of a backbone, but
    never after the last stage.
    """

    p: float = hyperparameter(0.5, most=1)
    alpha: float = hyperparameter(0.1, above=True)
    needs = ("backbone", "setup")
    stages: int = hyperparameter(3, least=1, on={"office-home": 2, "digits-dg": 2, "digits": 2})

    def forward(self, x: Tensor) -> Tensor:
        """Mix feature maps of shape (N, C, H, W)."""
        if not self.training or len(x) < 2 or min(x.shape[2:]) < SMALLEST:
            return x
        with torch.autocast(x.device.type, enabled=False):
            # The decision whether to mix is drawn on the device, so that a CUDA graph can capture it.
            share = torch._sample_dirichlet(torch.full((len(x), 2), self.alpha, device=x.device))[:, :1, None, None]
            partner = torch.rand(len(x), device=x.device).argsort()
            mixes = torch.rand((), device=x.device) < self.p
            return torch.where(mixes, mixed(x.float() if x.dtype.itemsize < 4 else x, share, partner).to(x.dtype), x)

    def insert(self, backbone: nn.Module, inputs: Tensor) -> None:
        """Insert the layer after backbone stages. Inputs of shape (N, C, H, W) must yield at least one map to mix."""
        stages = find_stages(backbone).stages[:-1][: self.stages]
        if not stages:
            raise MedicError(f"MixStyle requires a backbone with several stages, got one: {OTHERS}")
        with collected(stages) as maps, evaluating(backbone), torch.no_grad():
            backbone(inputs)
        if all(min(feature_map.shape[2:]) < SMALLEST for feature_map in maps):
            raise MedicError(
                f"MixStyle requires feature maps of at least {SMALLEST} × {SMALLEST} positions, but the maps of "
                f"{type(backbone).__name__} are smaller for images of {inputs.shape[-1]} px: use a larger --image-size"
            )
        for stage in stages:
            stage.module.register_forward_hook(self._mix)

    def _mix(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.training = module.training
        mixed: Tensor = self(output)
        return mixed


def mixed(x: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Mix the channel statistics of feature maps of shape (N, C, H, W).

    `share`, of shape (N, 1, 1, 1), weights an image's own statistics. `partner`, of shape (N,), holds the index of the
    image that each image is mixed with.
    """
    with torch.no_grad():
        mean = x.mean((2, 3), keepdim=True)
        deviation = (x.var((2, 3), keepdim=True) + 1e-6).sqrt()
    share = share.to(x.dtype)
    normal = (x - mean) / deviation
    mixed_deviation = share * deviation + (1 - share) * deviation[partner]
    return normal * mixed_deviation + share * mean + (1 - share) * mean[partner]
