"""Files of weights, and their tensors under timm's names, whichever library wrote them."""

import inspect
import pickle
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from medic.errors import MedicError, first_line

CLASSIFIERS = ("fc.", "classifier.", "head.", "head_dist.", "aux_head.", "close_head.", "ova_head.", "last_linear.")
"""The prefixes of a classifier's tensors, which weights of a backbone may have."""
TORCHVISION = ("features.0.0.weight", "conv_proj.weight")
"""Tensors by which torchvision's models are recognised, if their names differ from timm's."""
SAME_AS_TORCHVISION = r"mobilenetv2|efficientnet_b\d|convnext_(tiny|small|base|large)$|vit_\w+_patch\d+_224|swin_"
"""Models of timm that compute the same as torchvision's. Others have another padding or another epsilon."""


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


def missing_tensors(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that a network has and a file lacks; counters of batch norm may be missing."""
    return [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]


def extra_tensors(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that a file has and a network lacks, other than those of a classifier."""
    return [key for key in state if key not in expected and not key.startswith(CLASSIFIERS)]


def translate(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file by the names of a backbone, if the file is in another layout that is known.

    timm knows the layouts of OpenAI's CLIP, DINOv2 and others, for each family of its models. Those of torchvision are
    recognised here. Tensors of an unknown layout keep their names.
    """
    expected = module.state_dict()
    if not missing_tensors(state, expected) and not extra_tensors(state, expected):
        return state
    if not is_torchvision(state):
        translated = _filtered(module, state)
    elif re.match(SAME_AS_TORCHVISION, _architecture(module)):
        translated = _from_torchvision(state, expected)
    else:
        return state
    return state if missing_tensors(translated, expected) else translated


def is_torchvision(state: Mapping[str, Tensor]) -> bool:
    """Return whether tensors are in a layout of torchvision that is not timm's too."""
    return any(key in state for key in TORCHVISION)


def resample(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that belong to another image size, such as position embeddings, as timm resamples them."""
    # The weights of these layers do not depend on the image size: another shape is that of another network.
    layers = {name for name, part in module.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)}
    expected = module.state_dict()
    changed = [
        key
        for key, tensor in expected.items()
        if key in state and state[key].shape != tensor.shape and key.rpartition(".")[0] not in layers
    ]
    filtered = _filtered(module, state) if changed else {}
    return {key: filtered[key] for key in changed if key in filtered and filtered[key].shape == expected[key].shape}


def _filtered(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as timm's function for weight files of this family of models has them; none if it fails.

    The function renames the tensors of other libraries, and resamples those of another image size.
    """
    architecture = _architecture(module)
    if not architecture:
        return {}
    import timm

    family: Any = inspect.getmodule(timm.models.model_entrypoint(architecture))
    try:
        return dict(family.checkpoint_filter_fn(dict(state), module))
    except Exception:  # a family without this function, or tensors of another network
        return {}


def _architecture(module: nn.Module) -> str:
    """Return timm's name of a network; empty for a network that is not timm's."""
    configuration: Any = getattr(module, "pretrained_cfg", None)
    return "" if configuration is None else str(configuration["architecture"])


def _from_torchvision(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of torchvision's layout by timm's names.

    Both libraries have the same tensors in the same order, apart from position embeddings. So the first tensor of a
    shape is the first one of that shape in the other library, and so on. A classifier is left over.
    """
    by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
    for key, tensor in state.items():
        if not key.endswith("num_batches_tracked"):
            by_shape[_sides(tensor)].append(tensor)
    translated = {}
    for key, tensor in expected.items():
        if not key.endswith("num_batches_tracked") and (same := by_shape[_sides(tensor)]):
            translated[key] = same.pop(0).reshape(tensor.shape)
    return translated


def _sides(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor without sides of 1, which scales of channels have in one library only."""
    return tuple(side for side in tensor.shape if side != 1)
