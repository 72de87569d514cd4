"""Backbones by name: ours, or any of timm's."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, closest, first_line
from medic.models import _torchvision
from medic.models.convnet import ConvNet, MnistCnn
from medic.models.gfnet import GFNet, load_official
from medic.pixels import normalised


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


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, its number of features, and its preprocessing."""

    module: nn.Module
    features: int
    preprocessing: Preprocessing


def create_backbone(name: str, weights: Path | None = None, size: int | None = None) -> Backbone:
    """Make a backbone: `convnet`, `mnist-cnn`, `gfnet_h_ti`, or any model of timm; `weights` is a local file.

    `size` is the side of the images in pixels, for networks that depend on it.
    """
    if name in OURS:
        make, preprocessing = OURS[name]
        module = make(size or preprocessing.size)
        backbone = Backbone(module, int(module.num_features), preprocessing)  # type: ignore[arg-type]
    else:
        backbone = _from_timm(name)
    if weights is not None:
        load_weights(backbone.module, weights)
    return backbone


def native_size(name: str) -> int:
    """Return the side in pixels of the images that a backbone was designed for."""
    if name in OURS:
        return OURS[name][1].size
    config = import_timm(name).get_pretrained_cfg(name)
    return 224 if config is None else int(config.input_size[-1])


def fixed_size(name: str) -> int | None:
    """Return the only image side in pixels that a backbone accepts, or None if it accepts others."""
    if name in OURS:
        return None
    config = import_timm(name).get_pretrained_cfg(name)
    return int(config.input_size[-1]) if config is not None and config.fixed_input_size else None


def _from_timm(name: str) -> Backbone:
    timm = import_timm(name)
    module: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    # Some networks keep a layer between pooling and classifier, of width head_hidden_size.
    features = int(getattr(module, "head_hidden_size", None) or module.num_features)  # type: ignore[arg-type]
    config: dict[str, Any] = module.pretrained_cfg  # type: ignore[assignment]
    preprocessing = Preprocessing(tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1])
    return Backbone(module, features, preprocessing)


def import_timm(name: str) -> Any:
    """Import timm, which takes seconds, and check that it has a model."""
    _torchvision.ensure()
    import timm

    tagged = timm.list_models(f"{name.partition('.')[0]}.*", include_tags=True)
    if not timm.is_model(name) or ("." in name and name not in tagged):
        nearest = closest(name, [*OURS, *(tagged or timm.list_models())])
        hint = f"did you mean {nearest!r}?" if nearest else f"choose {', '.join(OURS)} or a model of timm"
        raise MedicError(f"unknown backbone {name!r}, {hint}")
    return timm


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a file of weights into a backbone; every tensor must be present, a classifier's may be left over."""
    # Prefixes of our own runs, and of models wrapped for several GPUs.
    state = {key.removeprefix("module.").removeprefix("backbone."): v for key, v in read_tensors(path).items()}
    expected = module.state_dict()
    for key, tensor in expected.items():  # first of all, because a GFNet's are resized
        if key in state and tensor.is_floating_point() and not state[key].is_floating_point():
            raise MedicError(f"weights {path} have {key!r} as {state[key].dtype}: save them in floating point")
        if key in state and state[key].ndim != tensor.ndim:
            raise _misshapen(path, key, state[key], tensor)
    if isinstance(module, GFNet):
        state = load_official(state, module.image_size)
    missing = [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]
    if missing:
        raise MedicError(f"weights {path} lack {len(missing)} tensors of this backbone, such as {missing[0]!r}")
    for key, tensor in expected.items():
        if key in state and state[key].shape != tensor.shape:
            raise _misshapen(path, key, state[key], tensor)
    heads = ("fc.", "classifier.", "head.", "head_dist.", "aux_head.", "close_head.", "ova_head.", "last_linear.")
    extra = [key for key in state if key not in expected and not key.startswith(heads)]
    if extra:
        raise MedicError(f"weights {path} have {extra[0]!r}, which this backbone lacks: they belong to another one")
    # Weights may be in half precision; the module keeps its own.
    module.load_state_dict({key: state[key] for key in expected if key in state}, strict=False)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a state dict from safetensors, or from a torch file of tensors and containers only."""
    if not path.is_file():
        raise MedicError(f"weights {path} {'are not a file' if path.exists() else 'do not exist'}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its message has many lines
        raise MedicError(f"weights {path} are not a plain state dict of tensors") from error
    except Exception as error:  # torch raises any type for a damaged file
        raise MedicError(f"weights {path} cannot be read: {first_line(error)}") from error
    for key in ("state_dict", "model"):
        state = state.get(key, state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise MedicError(f"weights {path} are not a state dict of tensors")
    for key, tensor in state.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise MedicError(f"weights {path} have {key!r} in a form without plain values: save dense tensors")
    return state


def _misshapen(path: Path, key: str, found: Tensor, expected: Tensor) -> MedicError:
    shapes = f"{tuple(found.shape)} instead of {tuple(expected.shape)}"
    return MedicError(f"weights {path} have {key!r} in the shape {shapes}: they belong to another backbone")
