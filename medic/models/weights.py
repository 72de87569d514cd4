"""Reading weights files from several libraries, and renaming their tensors to timm's names."""

import inspect
import pickle
import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from medic.errors import MedicError, unread

CLASSIFIERS = (
    "fc.", "classifier.", "classif.", "head.", "heads.", "head_dist.", "heads_dist.", "aux_head.", "close_head.",
    "ova_head.", "last_linear.",
)  # fmt: skip
"""Name prefixes of classifier tensors, which backbone weights may contain."""
TORCHVISION = ("features.0.0.weight", "conv_proj.weight")
"""Names that identify torchvision models whose tensor names differ from timm's."""
SAME_AS_TORCHVISION = r"mobilenetv2|efficientnet_b\d|convnext_(tiny|small|base|large)$|vit_\w+_patch\d+_224|swin_"
"""Pattern for timm models that are equivalent to torchvision's. Others differ in padding or epsilon."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a safetensors file, or from a torch file that contains only tensors and containers."""
    if not path.is_file():
        raise MedicError(f"weights {path} {'must be a file' if path.exists() else 'not found: pass a local file'}")
    if _is_torchscript(path):
        how = f"torch.save(torch.jit.load({path.name!r}).state_dict(), 'weights.pth')"
        raise MedicError(f"weights {path} are a TorchScript archive: convert them with {how}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its own message has many lines; an image is also "unpickled"
        how = "save it with torch.save(model.state_dict(), FILE)"
        raise MedicError(f"weights {path} are not a torch file, or not a plain state dict of tensors: {how}") from error
    except OSError as error:
        raise unread(path, error) from error
    except MemoryError:
        raise
    except Exception as error:  # torch raises many exception types for a damaged file
        raise MedicError(f"weights {path} are damaged, or neither a safetensors nor a torch file") from error
    for key in ("state_dict", "model"):
        state = state.get(key, state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise MedicError(f"weights {path} must be a state dict of tensors")
    for key, tensor in state.items():
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise MedicError(f"weights {path} store {key!r} as a sparse, quantised or meta tensor: save dense tensors")
    return state


def _is_torchscript(path: Path) -> bool:
    """Return whether a file is a TorchScript archive, such as those in which OpenAI distributes CLIP."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except zipfile.BadZipFile:  # an older torch file, or a damaged one
        return False


def missing_tensors(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the names of expected tensors that a file lacks. Batch-norm counters may be missing."""
    return [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]


def extra_tensors(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the names of unexpected tensors in a file, except classifier tensors."""
    return [key for key in state if key not in expected and not key.startswith(CLASSIFIERS)]


def translate(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a file to the names of a backbone, if the file uses a different but known layout.

    timm converts OpenAI's CLIP, DINOv2 and other layouts, separately for each model family. This module converts
    torchvision's layouts. Tensors in an unknown layout keep their names.
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
    """Return whether tensors use a torchvision layout that differs from timm's."""
    return any(key in state for key in TORCHVISION)


def resample(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that depend on the image size, such as position embeddings, resampled by timm."""
    # These weights do not depend on the image size, so a different shape means a different network.
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
    """Convert tensors with timm's filter for this model family. Returns an empty dict if the filter fails.

    The filter renames tensors from other libraries and resamples tensors for a different image size.
    """
    architecture = _architecture(module)
    if not architecture:
        return {}
    import timm

    family: Any = inspect.getmodule(timm.models.model_entrypoint(architecture))
    try:
        return dict(family.checkpoint_filter_fn(dict(state), module))
    except Exception:  # the family has no filter, or the tensors belong to another network
        return {}


def _architecture(module: nn.Module) -> str:
    """Return timm's name for a network, or an empty string if the network is not a timm model."""
    configuration: Any = getattr(module, "pretrained_cfg", None)
    return "" if configuration is None else str(configuration["architecture"])


def _from_torchvision(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors from torchvision's layout to timm's names.

    Apart from position embeddings, both libraries store the same tensors in the same order. Therefore, the n-th tensor
    of each shape in one library is the n-th tensor of that shape in the other. Classifier tensors are left over.
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
    """Return a tensor's shape without dimensions of size 1. Only one library has such dimensions in channel scales."""
    return tuple(side for side in tensor.shape if side != 1)
