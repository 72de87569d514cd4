"""Your own network as a backbone."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from medic.errors import MedicError, first_line
from medic.models.backbones import IMAGENET, OURS, Preprocessing
from medic.utils.modules import evaluating


def register_network(name: str, make: Callable[[], Any]) -> None:
    """Add a function that makes a network to the backbones. The network maps inputs (N, 3, H, W) to features (N, F).

    Inputs are normalised as ImageNet's, unless the network has an attribute `preprocessing`.
    """
    with torch.random.fork_rng(devices=[]):
        module = _made(name, make)
    preprocessing = getattr(module, "preprocessing", IMAGENET)
    if not isinstance(preprocessing, Preprocessing):
        raise MedicError(f"the preprocessing of network {name!r} is a {type(preprocessing).__name__}: give a "
                         "medic.models.Preprocessing(mean, std, size)")  # fmt: skip

    def sized(size: int) -> nn.Module:
        network = _made(name, make)
        network.num_features = _count_features(name, network, len(preprocessing.mean), size)  # type: ignore[assignment]
        return network

    OURS[name] = (sized, preprocessing)


def copied(module: nn.Module) -> Callable[[], nn.Module]:
    """Return a function that returns copies of a network, which itself stays as it is now."""
    kept = copy.deepcopy(module)
    return lambda: copy.deepcopy(kept)


def _made(name: str, make: Callable[[], Any]) -> nn.Module:
    """Call the function of a user, and check what it returns."""
    try:
        module = make()
    except Exception as error:  # whatever the user's code does
        raise MedicError(f"network {name} cannot be made: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise MedicError(f"network {name} is of type {type(module).__name__}: return a torch.nn.Module")
    return module


@torch.no_grad()
def _count_features(name: str, module: nn.Module, channels: int, size: int) -> int:
    """Return the number of features that a network gives for an image."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    try:
        with evaluating(module), torch.random.fork_rng(devices=[]):
            features = module(torch.zeros(1, channels, size, size, device=device))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise MedicError(
            f"network {name!r} does not take images of {channels} × {size} × {size} ({first_line(error)}): choose "
            "another --image-size"
        ) from error
    if not isinstance(features, Tensor) or features.dim() != 2:
        kind = f"a tensor of shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise MedicError(f"network {name!r} returned {kind}: return features (samples, features); medic adds the head")
    return features.shape[1]
