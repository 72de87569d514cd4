"""MixStyle (Zhou et al. 2021): styles of images, mixed inside the network."""

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from medic.errors import MedicError, check_range
from medic.models.stages import collected, find_stages
from medic.modes import evaluating

SMALLEST = 8
"""The side of the smallest map that has a style: behind it there is no more than a few positions to take means over."""


class MixStyle(nn.Module):
    """Mixes the channels' means and deviations of every image with those of another of the batch, in training.

    With the probability `p` a call mixes, by shares from Beta(α, α), one for each image. Statistics are constants.
    It is put behind the first `stages` stages of a backbone, but not behind the last.
    """

    def __init__(self, p: float = 0.5, alpha: float = 0.1, stages: int = 3) -> None:
        super().__init__()
        check_range("MixStyle", 1, stages=stages)
        check_range("MixStyle", most=1, p=p)
        check_range("MixStyle", above=True, alpha=alpha)
        self.p, self.alpha, self.stages = p, alpha, stages

    def forward(self, x: Tensor) -> Tensor:
        """Mix maps (N, C, H, W)."""
        if not self.training or len(x) < 2 or min(x.shape[2:]) < SMALLEST:
            return x
        with torch.autocast(x.device.type, enabled=False):
            # Nothing is asked of the device, so that a CUDA graph can hold it: whether to mix is drawn there too.
            share = torch._sample_dirichlet(torch.full((len(x), 2), self.alpha, device=x.device))[:, :1, None, None]
            partner = torch.rand(len(x), device=x.device).argsort()
            mixes = torch.rand((), device=x.device) < self.p
            return torch.where(mixes, mixed(x.float() if x.dtype.itemsize < 4 else x, share, partner).to(x.dtype), x)

    def insert(self, backbone: nn.Module, inputs: Tensor) -> None:
        """Mix behind stages of a backbone, of which inputs like these (N, C, H, W) must have a map with a style."""
        stages = find_stages(backbone).stages[:-1][: self.stages]
        with ExitStack() as stack, evaluating(backbone), torch.no_grad():
            maps = [stack.enter_context(collected(stage.module)) for stage in stages]
            backbone(inputs)
        for stage, found in zip(stages, maps, strict=True):
            stage.check(found[-1])
        if all(min(found[-1].shape[2:]) < SMALLEST for found in maps):
            raise MedicError(
                f"MixStyle mixes maps of {SMALLEST} positions a side or more, and with images of {inputs.shape[-1]} px "
                f"{type(backbone).__name__} has none: use a larger --image-size"
            )
        for stage in stages:
            stage.module.register_forward_hook(self._mix)

    def _mix(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.training = module.training
        mixed: Tensor = self(output)
        return mixed


def mixed(x: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    """Maps (N, C, H, W) whose statistics are `share` (N, 1, 1, 1) their own and the rest of those at `partner` (N,)."""
    with torch.no_grad():
        mean = x.mean((2, 3), keepdim=True)
        deviation = (x.var((2, 3), keepdim=True) + 1e-6).sqrt()
    share = share.to(x.dtype)
    normal = (x - mean) / deviation
    mixed_deviation = share * deviation + (1 - share) * deviation[partner]
    return normal * mixed_deviation + share * mean + (1 - share) * mean[partner]
