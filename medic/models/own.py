"""Custom networks as backbones."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from medic.errors import MedicError, first_line
from medic.models.backbones import IMAGENET, OURS, Preprocessing, has_batch_norm
from medic.utils.modules import evaluating


def register_network(name: str, make: Callable[[], Any]) -> None:
    """Register `make`, a function that creates a network, as a backbone called `name`.

    The network must map inputs of shape (N, 3, H, W) to features of shape (N, F). Inputs are normalised with ImageNet
    statistics, unless the network has a `preprocessing` attribute.
    """
    with torch.random.fork_rng(devices=[]):
        module = _made(name, make)
    preprocessing = getattr(module, "preprocessing", IMAGENET)
    if not isinstance(preprocessing, Preprocessing):
        raise MedicError(f"preprocessing of network {name!r} must be a medic.models.Preprocessing(mean, std, size), "
                         f"got {type(preprocessing).__name__}")  # fmt: skip

    def sized(size: int) -> nn.Module:
        network = _made(name, make)
        network.num_features = _count_features(name, network, len(preprocessing.mean), size)  # type: ignore[assignment]
        return network

    OURS[name] = (sized, preprocessing)
    has_batch_norm.cache_clear()  # an earlier network of this name may have differed


def copied(module: nn.Module) -> Callable[[], nn.Module]:
    """Return a function that creates copies of a network in its current state."""
    kept = copy.deepcopy(module)
    return lambda: copy.deepcopy(kept)


def _made(name: str, make: Callable[[], Any]) -> nn.Module:
    """Call the user's function, and check that it returns a network."""
    try:
        with warnings.catch_warnings():  # the function may load weights while medic needs only their shapes
            warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter")
            module = make()
    except Exception as error:  # user code may raise any exception
        raise MedicError(f"could not create network {name}: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise MedicError(f"network {name} must be a torch.nn.Module, got {type(module).__name__}")
    return module


@torch.no_grad()
def _count_features(name: str, module: nn.Module, channels: int, size: int) -> int:
    """Return the number of features that a network returns for an image."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    try:
        with evaluating(module), torch.random.fork_rng(devices=[]):
            features = module(torch.zeros(1, channels, size, size, device=device))
    except Exception as error:  # user code may raise any exception
        raise MedicError(
            f"network {name!r} does not accept images of {channels} × {size} × {size} ({first_line(error)}): it must "
            "map images to features of shape (samples, features); if it needs another size, use --image-size"
        ) from error
    if not isinstance(features, Tensor) or features.dim() != 2:
        kind = f"a tensor of shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise MedicError(
            f"network {name!r} must return features of shape (samples, features), got {kind}; medic adds the head"
        )
    return features.shape[1]
