"""Backbones by name: ours, or any of timm's."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import LONGEST_NAME, MedicError, closest, counted, first_line
from medic.models import _torchvision
from medic.models.convnet import ConvNet, MnistCnn
from medic.models.gfnet import GFNet, load_official
from medic.models.weights import (
    CLASSIFIERS,
    extra_tensors,
    is_torchvision,
    missing_tensors,
    read_tensors,
    resample,
    translate,
)
from medic.utils.pixels import normalised


@dataclass(frozen=True)
class Preprocessing:
    """The conversion of pixels in [0, 1] to inputs: resized to `size` × `size`, then (x - mean) / std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int

    def __call__(self, pixels: Tensor) -> Tensor:
        """Resize float pixels (N, C, H, W) if needed, and normalise them."""
        if pixels.shape[2:] != (self.size, self.size):
            pixels = functional.interpolate(pixels, (self.size, self.size), mode="bilinear", antialias=True)
        return normalised(pixels, self.mean, self.std)


HALVES = Preprocessing((0.5,) * 3, (0.5,) * 3, size=32)
UNCHANGED = Preprocessing((0.0,) * 2, (1.0,) * 2, size=28)
IMAGENET = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), size=224)

OURS: dict[str, tuple[Callable[[int], nn.Module], Preprocessing]] = {
    "convnet": (lambda size: ConvNet(), HALVES),
    "mnist-cnn": (lambda size: MnistCnn(), UNCHANGED),
    "gfnet_h_ti": (lambda size: GFNet(image_size=size), IMAGENET),
}
"""Our own backbones: a function of the image size in pixels, and the preprocessing."""

COMMON = (
    "resnet18", "resnet34", "resnet50", "vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224",
    "resnet101", "resnet152", "convnext_tiny", "efficientnet_b0", "densenet121", "swin_tiny_patch4_window7_224",
)  # fmt: skip
"""Common timm models, in the order in which weights are compared with them to suggest a backbone."""
FITS = 0.9
"""Share of common tensors above which weights are said to fit a backbone."""


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, its number of features, and its preprocessing."""

    module: nn.Module
    features: int
    preprocessing: Preprocessing


OWN = "own"
"""The value of `pool` for a backbone's own pooling."""
POOLS = (OWN, "token", "avg", "max", "avgmax")
"""The values of `pool`, which are timm's."""


def create_backbone(name: str, weights: Path | None = None, size: int | None = None, pool: str = OWN) -> Backbone:
    """Make a backbone: `convnet`, `mnist-cnn`, `gfnet_h_ti`, or any model of timm; `weights` is a local file.

    `size` is the side of the images in pixels (default: `native_size`). Networks that depend on it are made for it, and
    their weights resampled. `pool` replaces the pooling of the last map or tokens in a model of timm.
    """
    size = size or native_size(name)
    if name in OURS:
        make, preprocessing = OURS[name]
        module = make(size)
        backbone = Backbone(module, int(module.num_features), preprocessing)  # type: ignore[arg-type]
    else:
        backbone = _from_timm(name, size)
    if weights is not None:
        load_weights(backbone.module, weights, size if is_sized(name) else None)
    if pool != OWN:  # after the weights, which include those of the pooling that is replaced
        _set_pool(backbone.module, name, pool)
    return replace(backbone, preprocessing=replace(backbone.preprocessing, size=size))


def native_size(name: str) -> int:
    """Return the side in pixels of the images that a backbone was designed for."""
    if name in OURS:
        return OURS[name][1].size
    config = import_timm(name).get_pretrained_cfg(name)
    return 224 if config is None else int(config.input_size[-1])


def is_sized(name: str) -> bool:
    """Whether a backbone of timm is made for one image size, as most transformers are."""
    config = None if name in OURS else import_timm(name).get_pretrained_cfg(name)
    return config is not None and bool(config.fixed_input_size)


@cache
def has_batch_norm(name: str, size: int | None = None) -> bool:
    """Whether a backbone has batch-norm layers; models of timm are built on the meta device."""
    with torch.random.fork_rng(devices=[]), nullcontext() if name in OURS else torch.device("meta"):
        module = create_backbone(name, size=size).module
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def _from_timm(name: str, size: int) -> Backbone:
    timm = import_timm(name)
    if is_sized(name) and size != native_size(name):
        module = _resized(timm, name, size)
    else:
        module = timm.create_model(name, pretrained=False, num_classes=0)
    # Some networks keep a layer between pooling and classifier, of width head_hidden_size.
    features = int(getattr(module, "head_hidden_size", None) or module.num_features)  # type: ignore[arg-type]
    config: dict[str, Any] = module.pretrained_cfg  # type: ignore[assignment]
    preprocessing = Preprocessing(tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1])
    return Backbone(module, features, preprocessing)


def _set_pool(module: nn.Module, name: str, pool: str) -> None:
    """Replace the pooling of a model of timm by another that needs no weights."""
    try:
        if pool == "token" and getattr(module, "num_prefix_tokens", 0) == 0:
            raise ValueError("it has no class token")
        module.reset_classifier(0, pool)  # type: ignore[operator]
    except (AttributeError, TypeError, ValueError, AssertionError) as error:
        raise MedicError(
            f"backbone {name!r} cannot have pool {pool!r} ({first_line(error)}): leave out --pool"
        ) from error


def _resized(timm: Any, name: str, size: int) -> nn.Module:
    """Make a model of timm for another image size than its own, and check that it takes such images."""
    refused = f"backbone {name!r} cannot be made for images of {size} px"
    try:
        module: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, img_size=size)
        patches = (part.patch_size for part in module.modules() if isinstance(part, timm.layers.PatchEmbed))
        patch = max(next(patches, (1,)))
        if size % patch:  # timm would ignore the pixels beyond the last whole patch
            nearest = patch * max(1, round(size / patch))
            raise MedicError(f"{refused}, not a multiple of its patches of {patch} px: use --image-size {nearest}")
        with torch.no_grad():
            module.eval()(torch.zeros(1, 3, size, size))
    except MedicError:
        raise
    except Exception as error:  # timm raises any type
        way = f"use --image-size {native_size(name)}, its own"
        raise MedicError(f"{refused} ({first_line(error)}): {way}") from error
    return module.train()


@cache
def import_timm(name: str) -> Any:
    """Import timm, which takes seconds, and check that it has a model; a search of its names takes 15 ms."""
    if len(name) > LONGEST_NAME:  # timm makes a pattern of it
        raise MedicError(f"unknown backbone {name[:20]!r}…, choose {', '.join(OURS)} or a model of timm")
    _torchvision.ensure()
    import timm

    tagged = timm.list_models(f"{name.partition('.')[0]}.*", include_tags=True)
    if not timm.is_model(name) or ("." in name and name not in tagged):
        nearest = closest(name, [*OURS, *(tagged or timm.list_models())])
        hint = f"did you mean {nearest!r}?" if nearest else f"choose {', '.join(OURS)} or a model of timm"
        raise MedicError(f"unknown backbone {name!r}, {hint}")
    return timm


def load_weights(module: nn.Module, path: Path, size: int | None = None) -> None:
    """Load a file of weights into a backbone; every tensor must be present, a classifier's may be left over.

    `size` is the image size of a model of timm that is made for one; tensors of another size are resampled to it.
    """
    # Prefixes of our own runs, and of models wrapped for several GPUs.
    state = {key.removeprefix("module.").removeprefix("backbone."): v for key, v in read_tensors(path).items()}
    expected = module.state_dict()
    for key, tensor in expected.items():  # first of all, because a GFNet's are resized
        if key in state and tensor.is_floating_point() and not state[key].is_floating_point():
            raise MedicError(f"weights {path} have {key!r} as {state[key].dtype}: save them in floating point")
    if path.suffix == ".safetensors" and is_torchvision(state):  # which sort their tensors
        raise MedicError(f"weights {path} are torchvision's, which are matched by order: give its .pth file")
    state = translate(module, state)
    for key, tensor in expected.items():
        if key in state and state[key].ndim != tensor.ndim:
            raise _misshapen(path, key, state, tensor)
    if isinstance(module, GFNet):
        state = load_official(state, module.image_size)
    if missing := missing_tensors(state, expected):
        lacking = f"weights {path} lack {counted(len(missing), 'tensor')} of this backbone, such as {missing[0]!r}"
        raise MedicError(f"{lacking}: {_fitting(state)}")
    if size is not None:
        state |= resample(module, state)
    for key, tensor in expected.items():
        if key in state and state[key].shape != tensor.shape:
            raise _misshapen(path, key, state, tensor, size)
    if extra := extra_tensors(state, expected):
        raise MedicError(f"weights {path} have {extra[0]!r}, which this backbone lacks: {_fitting(state)}")
    # Weights may be in half precision; the module keeps its own.
    module.load_state_dict({key: state[key] for key in expected if key in state}, strict=False)


def _misshapen(
    path: Path, key: str, state: Mapping[str, Tensor], expected: Tensor, size: int | None = None
) -> MedicError:
    shapes = f"{tuple(state[key].shape)} instead of {tuple(expected.shape)}"
    other = "" if size is None else f", or leave out --image-size {size}"
    return MedicError(f"weights {path} have {key!r} in the shape {shapes}: {_fitting(state)}{other}")


def _fitting(state: Mapping[str, Tensor]) -> str:
    """Return a hint for weights of another backbone: the known backbone with the same tensors, if there is one."""
    tensors = {(key, tensor.shape) for key, tensor in state.items() if not key.startswith(CLASSIFIERS)}
    for name in (*OURS, *COMMON):
        expected = _shapes(name)
        if len(tensors & expected) >= FITS * len(tensors | expected):
            return f"they fit --backbone {name}"
    return "they belong to another backbone, give its name with --backbone"


@cache
def _shapes(name: str) -> frozenset[tuple[str, torch.Size]]:
    """Return the names and shapes of a backbone's tensors."""
    with torch.device("meta"):  # without memory
        return frozenset((key, tensor.shape) for key, tensor in create_backbone(name).module.state_dict().items())
