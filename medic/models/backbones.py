"""Built-in backbones and timm models, by name."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import LONGEST_NAME, MedicError, check_choice, closest, counted, first_line
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
from medic.utils.modules import evaluating
from medic.utils.pixels import normalised


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of pixels in [0, 1] to inputs: resize to `size` × `size`, then (x - mean) / std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int

    def __call__(self, pixels: Tensor) -> Tensor:
        """Resize float pixels of shape (N, C, H, W) if needed, and normalise them."""
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
"""Built-in backbones by name: a function that builds one for an image size in pixels, and its preprocessing."""
BUILT_IN = tuple(OURS)
"""Names of the built-in backbones. Custom networks are added to `OURS`."""
_OWN = "backbone."
"""Prefix of the backbone's tensors in the model file of a run."""

COMMON = (
    "resnet18", "resnet34", "resnet50", "vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224",
    "resnet101", "resnet152", "convnext_tiny", "tf_efficientnet_lite0", "efficientnet_b0", "mobilenetv2_100",
    "densenet121", "swin_tiny_patch4_window7_224", "vit_small_patch14_dinov2", "vit_base_patch14_dinov2",
)  # fmt: skip
"""Common timm models, in the order in which they are tried to suggest a backbone for weights."""
M = TypeVar("M", bound=nn.Module)
FITS = 0.9
"""Minimum fraction of matching tensors for which weights are said to match a backbone."""


@dataclass(frozen=True)
class Backbone:
    """A network without its classifier, its number of features, and its preprocessing."""

    module: nn.Module
    features: int
    preprocessing: Preprocessing


OWN = "own"
"""Value of `pool` that keeps the backbone's own pooling."""
POOLS = (OWN, "token", "avg", "max", "avgmax")
"""Values of `pool`. All but the first are timm's names."""


def create_backbone(name: str, weights: Path | str | None = None, size: int | None = None, pool: str = OWN) -> Backbone:
    """Create a backbone: `convnet`, `mnist-cnn`, `gfnet_h_ti` or any timm model.

    `weights` is a local file. `size` is the image side in pixels (default: `native_size`). Networks with a fixed image
    size are built for `size`, and their weights are resampled. `pool` replaces the final pooling of a timm model.
    """
    check_choice("pool", pool, POOLS)
    if size is not None and (not isinstance(size, int) or size < 1):
        raise MedicError(f"size must be a number of pixels, at least 1, got {size!r}")
    size = size or native_size(name)
    if name in OURS:
        make, preprocessing = OURS[name]
        module = make(size)
        backbone = Backbone(module, int(module.num_features), preprocessing)  # type: ignore[arg-type]
    else:
        backbone = _from_timm(name, size)
    if weights is not None:
        load_weights(name, backbone.module, Path(weights), size if is_sized(name) else None)
    if pool != OWN:  # after loading, because the weights may include the original pooling
        _set_pool(backbone, name, pool, size)
    return replace(backbone, preprocessing=replace(backbone.preprocessing, size=size))


def native_size(name: str) -> int:
    """Return the image side in pixels that a backbone was designed for."""
    if name in OURS:
        return OURS[name][1].size
    config = import_timm(name).get_pretrained_cfg(name)
    return 224 if config is None else int(config.input_size[-1])


def is_sized(name: str) -> bool:
    """Return whether a timm model has a fixed image size, like most transformers."""
    config = None if name in OURS else import_timm(name).get_pretrained_cfg(name)
    return config is not None and bool(config.fixed_input_size)


def is_custom(name: str) -> bool:
    """Return whether a backbone is a custom network, which may come with weights of its own."""
    return name in OURS and name not in BUILT_IN


@cache
def has_batch_norm(name: str, size: int | None = None) -> bool:
    """Return whether a backbone has batch-norm layers. timm models are built on the meta device, without memory."""
    with torch.random.fork_rng(devices=[]), nullcontext() if name in OURS else torch.device("meta"):
        module = create_backbone(name, size=size).module
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


def synchronise_batch_norm(model: M) -> M:
    """Replace batch-norm layers with layers whose statistics include the images of all processes."""
    _torchvision.ensure()
    from timm.layers.norm_act import convert_sync_batchnorm  # torch's own drops the activations of timm's layers

    return convert_sync_batchnorm(model)  # type: ignore[no-any-return, no-untyped-call]


def _from_timm(name: str, size: int) -> Backbone:
    timm = import_timm(name)
    if is_sized(name) and size != native_size(name):
        module = _resized(timm, name, size)
    else:
        module = timm.create_model(name, pretrained=False, num_classes=0)
    if any(getattr(part, "out_features", None) == 0 for part in module.modules()):  # timm's InceptionNeXt
        module.reset_classifier(0)  # type: ignore[operator]
    # Some networks keep a hidden layer between pooling and classifier.
    features = int(getattr(module, "head_hidden_size", None) or module.num_features)  # type: ignore[arg-type]
    config: dict[str, Any] = module.pretrained_cfg  # type: ignore[assignment]
    preprocessing = Preprocessing(tuple(config["mean"]), tuple(config["std"]), config["input_size"][-1])
    return Backbone(module, features, preprocessing)


def _set_pool(backbone: Backbone, name: str, pool: str, size: int) -> None:
    """Replace the pooling of a timm model with a pooling that has no weights, and check the result."""
    module = backbone.module
    if not hasattr(module, "reset_classifier"):
        raise MedicError(
            f"backbone {name!r} does not support pool {pool!r}, because it is not a timm model: omit --pool"
        )
    try:
        if pool == "token" and getattr(module, "num_prefix_tokens", 0) == 0:
            raise ValueError("the model has no class token")
        module.reset_classifier(0, pool)  # type: ignore[operator]
        with torch.no_grad(), evaluating(module):
            shape = tuple(module(torch.zeros(1, 3, size, size)).shape)
        if shape != (1, backbone.features):  # some models ignore an unknown pooling
            raise ValueError(f"its features would have shape {shape}")
    except (AttributeError, TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise MedicError(
            f"backbone {name!r} does not support pool {pool!r} ({first_line(error)}): omit --pool"
        ) from error


def _resized(timm: Any, name: str, size: int) -> nn.Module:
    """Create a timm model for a non-native image size, and check that it accepts such images."""
    refused = f"backbone {name!r} does not support images of {size} px"
    try:
        module: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, img_size=size)
        patches = (part.patch_size for part in module.modules() if isinstance(part, timm.layers.PatchEmbed))
        patch = max(next(patches, (1,)))
        if size % patch:  # timm would ignore the pixels beyond the last whole patch
            nearest = patch * max(1, round(size / patch))
            raise MedicError(
                f"{refused}, which is not a multiple of its {patch} px patches: use --image-size {nearest}"
            )
        with torch.no_grad():
            module.eval()(torch.zeros(1, 3, size, size))
    except MedicError:
        raise
    except Exception as error:  # timm raises many exception types
        way = f"use its native --image-size {native_size(name)}"
        raise MedicError(f"{refused} ({first_line(error)}): {way}") from error
    return module.train()


@cache
def import_timm(name: str) -> Any:
    """Import timm and check that it has a model with this name. The result is cached: the import takes seconds."""
    if len(name) > LONGEST_NAME:  # timm compiles the name to a pattern
        raise MedicError(f"unknown backbone {name[:20]!r}…: choose {', '.join(OURS)} or a timm model")
    _torchvision.ensure()
    import timm

    tagged = timm.list_models(f"{name.partition('.')[0]}.*", include_tags=True)
    if not timm.is_model(name) or ("." in name and name not in tagged):
        nearest = closest(name, [*OURS, *(tagged or timm.list_models())])
        hint = f"did you mean {nearest!r}?" if nearest else f"choose {', '.join(OURS)} or a timm model"
        raise MedicError(f"unknown backbone {name!r}: {hint}")
    return timm


def load_weights(name: str, module: nn.Module, path: Path, size: int | None = None) -> None:
    """Load a weights file into a backbone. The file must contain every tensor; classifier tensors are ignored.

    `name` is the name of the backbone, for messages. `size` is the image size of a timm model with a fixed image size.
    Tensors for a different size are resampled.
    """
    tensors = {key.removeprefix("module."): tensor for key, tensor in read_tensors(path).items()}  # of several GPUs
    # The file of a medic run also contains a head, and what its score and reports need.
    own = {key.removeprefix(_OWN): tensor for key, tensor in tensors.items() if key.startswith(_OWN)}
    state = own or tensors
    expected = module.state_dict()
    for key, tensor in expected.items():  # before anything else, because GFNet tensors are resized below
        if key in state and tensor.is_floating_point() and not state[key].is_floating_point():
            raise MedicError(f"weights {path} store {key!r} as {state[key].dtype}: save them in floating point")
    if path.suffix == ".safetensors" and is_torchvision(state):  # the format sorts tensors by name
        raise MedicError(f"weights {path} are torchvision's, but .safetensors changes their order: use the .pth file")
    state = translate(module, state)
    for key, tensor in expected.items():
        if key in state and state[key].ndim != tensor.ndim:
            raise _misshapen(name, path, key, state, tensor)
    if isinstance(module, GFNet):
        state = load_official(state, module.image_size)
    if missing := missing_tensors(state, expected):
        lacking = f"{counted(len(missing), 'tensor')} of backbone {name}, such as {missing[0]!r}"
        raise MedicError(f"weights {path} are missing {lacking}: {_fitting(state)}")
    if size is not None:
        state |= resample(module, state)
    for key, tensor in expected.items():
        if key in state and state[key].shape != tensor.shape:
            raise _misshapen(name, path, key, state, tensor, size)
    if extra := extra_tensors(state, expected):
        raise MedicError(f"weights {path} contain {extra[0]!r}, which backbone {name} lacks: {_fitting(state)}")
    # Weights may be in half precision. The module keeps its own precision.
    module.load_state_dict({key: state[key] for key in expected if key in state}, strict=False)


def _misshapen(
    name: str, path: Path, key: str, state: Mapping[str, Tensor], expected: Tensor, size: int | None = None
) -> MedicError:
    shapes = f"{tuple(state[key].shape)}, but backbone {name} expects {tuple(expected.shape)}"
    native = size is not None and (key, state[key].shape) in _shapes(name)
    way = f"omit --image-size {size}" if native else _fitting(state)
    return MedicError(f"tensor {key!r} in weights {path} has shape {shapes}: {way}")


def _fitting(state: Mapping[str, Tensor]) -> str:
    """Return a hint for mismatched weights: the backbone they match, if it is a common one."""
    tensors = {(key, shape) for key, shape in _shapes_of(state) if not key.startswith(CLASSIFIERS)}
    for name in (*BUILT_IN, *COMMON):
        expected = _shapes(name)
        if len(tensors & expected) >= FITS * len(tensors | expected):
            return f"they match --backbone {name}"
    return "they belong to a different backbone; select it with --backbone"


@cache
def _shapes(name: str) -> frozenset[tuple[str, torch.Size]]:
    """Return the names and shapes of a backbone's tensors."""
    with torch.device("meta"):  # allocates no memory
        return frozenset(_shapes_of(create_backbone(name).module.state_dict()))


def _shapes_of(state: Mapping[str, Tensor]) -> Iterator[tuple[str, torch.Size]]:
    """Yield the names and shapes of tensors. Batch-norm counters, which a file may lack, are left out."""
    for key, tensor in state.items():
        if not key.endswith("num_batches_tracked"):
            yield key, tensor.shape
