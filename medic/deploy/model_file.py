"""Model files: weights in `model.safetensors`, and everything needed to use them in `model.json`.

The two files are self-contained, plain data, and loading untrusted files is safe. Nothing in them is executed, and a
network is created only if the weights in the file match it.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from medic.data.classes import check_class_names, has_controls
from medic.deploy.layout import DESCRIPTION, WEIGHTS
from medic.errors import MedicError, check_choice, first_line, unread
from medic.models import Classifier, Ensemble, Preprocessing, assemble, create_backbone, is_sized, native_size
from medic.models.backbones import OWN, POOLS
from medic.openset import Fitted, Reference, Score, Threshold, get_score
from medic.utils.files import atomic_write, write_text

FORMAT, OLDEST = 3, 2
"""The format that is written, and the oldest format that can be read. Version 0.3 wrote format 2."""
CHECKSUM = "checksum"
"""Entry in the description that holds the checksum of all other entries. Version 0.3 did not write it."""
SCORE = "score/"
"""Prefix of a fitted score's tensors in the weights file."""
REFERENCE = "reference/"
"""Prefix, in the weights file, of the tensors that `medic watch` compares new images with."""
KNOWN = "known/"
"""Prefix of the known images' confidences, by domain, in the weights file."""
MAX_KNOWN = 10_000
"""Maximum number of confidences that are kept per domain."""
MAX_DESCRIPTION = 2**24
"""Maximum size of the description in bytes, enough for a million classes."""
MAX_NETWORKS = 100
"""Maximum number of networks in an ensemble. Runs have at most one per source domain."""
MAX_SIZE = 4096
"""Maximum image side length in pixels, which bounds the memory that a batch requires."""
MAX_VIEWS = 1000
MAX_TABLES = 2**28
"""Maximum size in bytes of the tensors that a network computes when it is created, in addition to its weights."""


@dataclass(frozen=True)
class HeldOut:
    """Statistics of held-out images, stored in the model file with the weights."""

    known: Mapping[str, Tensor] = field(default_factory=dict)
    """Sorted confidences of known images by domain, each of shape (N,), for p-values."""
    reference: Reference | None = None
    """Statistics that `medic watch` compares new images with; None if there are too few images."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by their name in the weights file."""
        compared = {} if self.reference is None else self.reference.tensors
        return {
            **{f"{KNOWN}{domain}": confidence for domain, confidence in self.known.items()},
            **{f"{REFERENCE}{name}": tensor for name, tensor in compared.items()},
        }


def keep_known(domains: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sort the known images' confidences for the model file, and keep at most `MAX_KNOWN` per domain."""
    kept = {}
    for domain, confidence in domains.items():
        ordered = confidence.detach().cpu().double().sort().values
        chosen = torch.linspace(0, len(ordered) - 1, min(MAX_KNOWN, len(ordered)), dtype=torch.float64)
        kept[domain] = ordered[chosen.round().long()]
    return kept


def write_model(
    folder: Path, network: nn.Module, score: Score, held_out: HeldOut, described: Mapping[str, Any]
) -> None:
    """Write both files. Adds the format and the checksums to the description."""
    fitted = score.function.tensors if isinstance(score.function, Fitted) else {}
    tensors = {
        **network.state_dict(),
        **{f"{SCORE}{name}": tensor for name, tensor in fitted.items()},
        **held_out.tensors,
    }
    # Copies, because the format does not allow two names for one tensor, as in networks that use a layer twice.
    content = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    with atomic_write(folder / WEIGHTS) as file:
        file.write(content)
    sealed = {"format": FORMAT, **described, "sha256": hashlib.sha256(content).hexdigest()}
    sealed[CHECKSUM] = _checksum(json.loads(json.dumps(sealed)))
    write_text(folder / DESCRIPTION, json.dumps(sealed, indent=2, ensure_ascii=False) + "\n")


def _checksum(described: Mapping[str, Any]) -> str:
    """Return the checksum of a description, independent of key order and formatting."""
    content = {name: value for name, value in described.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_description(folder: Path) -> dict[str, Any]:
    """Read and validate a model description."""
    path = folder / DESCRIPTION
    try:
        if path.stat().st_size > MAX_DESCRIPTION:
            raise MedicError(f"{path} is not a model description: it is larger than {MAX_DESCRIPTION >> 20} MiB")
        described = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        number = described["format"]
    except OSError as error:
        raise unread(path, error) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, MedicError):
            raise
        raise MedicError(f"{path} is not a model description: {_reason(error)}") from error
    if type(number) is not int or not OLDEST <= number <= FORMAT:
        newer = isinstance(number, int) and number > FORMAT
        way = "written by a newer version, upgrade medic" if newer else "written by an older version, retrain the model"
        raise MedicError(f"{path} has format {number!r}, but this version reads {OLDEST} to {FORMAT}: {way}")
    if described.get(CHECKSUM, (right := _checksum(described))) != right:
        way = f"copy the model again, or remove the {CHECKSUM!r} entry if you edited {path.name} yourself"
        raise MedicError(f"checksum mismatch in {path}: {way}")
    return dict(described)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from a JSON object, and raise an error for duplicate keys, which programs treat differently."""
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"duplicate entry {name!r}")
        entries[name] = value
    return entries


def read_preprocessing(described: Mapping[str, Any]) -> tuple[Preprocessing, int]:
    """Read the preprocessing, and the side length in pixels to which images are decoded."""
    fields = described["preprocessing"]
    for name, supported in (("resampling", "bilinear"), ("upright", True)):
        if fields[name] != supported or type(fields[name]) is not type(supported):
            raise ValueError(f"unsupported preprocessing: {name} is {fields[name]!r}")
    mean, std = ([_number(value) for value in fields[name]] for name in ("mean", "std"))
    size, decoded = fields["size"], fields["decoded"]
    sides = all(type(side) is int and 0 < side <= MAX_SIZE for side in (size, decoded))
    if not sides or len(mean) != len(std) or not all(map(math.isfinite, mean + std)) or 0 in std:
        raise ValueError("invalid preprocessing values")
    return Preprocessing(tuple(mean), tuple(std), size), decoded


def _number(value: Any) -> float:
    """Return a number as a float. Raise an error for any other type, including booleans."""
    if type(value) not in (int, float):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value)


def describe_preprocessing(preprocessing: Preprocessing, decoded: int) -> dict[str, Any]:
    """Describe the preprocessing: EXIF rotation, then resizing to `decoded` pixels and to the input size."""
    return {"upright": True, "resampling": "bilinear", "decoded": decoded, **asdict(preprocessing)}


def read_network(folder: Path, described: Mapping[str, Any]) -> tuple[Classifier | Ensemble, Score, HeldOut]:
    """Load the network in evaluation mode, the score with its fitted state, and the held-out statistics."""
    tensors = _read_tensors(folder / WEIGHTS, described)
    network = _make_network(described, read_preprocessing(described)[0].size, _count_networks(described))
    fitted, compared, known = (
        {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
        for prefix in (SCORE, REFERENCE, KNOWN)
    )
    network.load_state_dict(tensors)
    score = get_score(described["score"]["name"])
    _check_fitted(fitted, score)
    if score.fitter is not None:
        score = replace(score, function=score.fitter.from_tensors(fitted), fitter=None)
    _check_known(known)
    reference = Reference.from_tensors(compared, network.features) if compared else None
    return network.eval(), score, HeldOut(known, reference)


def _count_networks(described: Mapping[str, Any]) -> int:
    networks = described["model"]["networks"]
    if type(networks) is not int or not 0 < networks <= MAX_NETWORKS:
        raise ValueError(f"'networks' must be 1 to {MAX_NETWORKS}, got {networks!r}")
    return networks


def _make_network(described: Mapping[str, Any], size: int, networks: int = 1) -> Classifier | Ensemble:
    """Create the described network, or an ensemble of `networks`, for images with a side of `size` pixels."""
    import medic.systems  # noqa: F401, registers the heads of systems

    made, (preprocessing, _) = described["model"], read_preprocessing(described)
    pool = check_choice("pool", made.get("pool", OWN), POOLS)
    backbones = [create_backbone(str(made["backbone"]), size=size, pool=pool) for _ in range(networks)]
    if len(backbones[0].preprocessing.mean) != len(preprocessing.mean):
        raise ValueError("the preprocessing does not match the backbone")
    scaled = made.get("scaled", False)
    if scaled is not True and scaled is not False:
        raise ValueError(f"'scaled' must be true or false, got {scaled!r}")
    return assemble(backbones, len(read_classes(described)), str(made["head"]), scaled)


def read_classes(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the names of the known classes."""
    classes = described["classes"]
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise ValueError("'classes' must be a list of names")
    if len(set(classes)) < len(classes):
        raise ValueError("'classes' contains a duplicate name")
    check_class_names(classes)
    return tuple(classes)


def read_threshold(described: Mapping[str, Any]) -> Threshold:
    """Read the threshold."""
    threshold = described["threshold"]
    value, displayed = _number(threshold["value"]), threshold["probability"]
    if math.isnan(value):
        raise ValueError("the threshold is NaN")
    probability = None if displayed is None else _number(displayed)
    if probability is not None and not abs(torch.tensor(value).double().sigmoid().item() - probability) < 1e-6:
        raise ValueError(f"the threshold {value:g} does not match its probability {probability:g}")
    if not isinstance(threshold["rule"], str) or has_controls(threshold["rule"]):
        raise ValueError(f"invalid threshold rule {threshold['rule']!r}")
    return Threshold(value, threshold["rule"], probability)


def read_learned(described: Mapping[str, Any]) -> bool:
    """Return whether training learned anything. True for models saved before version 0.4, which do not record it."""
    provenance = described.get("provenance")
    learned = provenance.get("learned", True) if isinstance(provenance, Mapping) else True
    if learned is not True and learned is not False:
        raise ValueError(f"'learned' in the provenance must be true or false, got {learned!r}")
    return learned


def _read_tensors(path: Path, described: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights, after checking their names and shapes against the described network."""
    _check_length(path)
    with safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, not a mapping
        _check_shapes(
            {name: shape for name, shape in shapes.items() if not name.startswith((SCORE, REFERENCE, KNOWN))}, described
        )
        with path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != described["sha256"]:
                raise ValueError(f"checksum mismatch between {path.name} and {DESCRIPTION}")
        return {name: file.get_tensor(name) for name in shapes}


def _check_shapes(weights: Mapping[str, tuple[int, ...]], described: Mapping[str, Any]) -> None:
    """Raise an error unless the weights have the names and shapes of the described network.

    A 1 kB description can request a network that takes minutes to create. The check therefore creates a single network
    without storage, which represents all networks of an ensemble. Creating it for large images can still take a minute,
    so the names and most of the shapes are first compared with the network at its native image size.
    """
    networks, backbone = _count_networks(described), str(described["model"]["backbone"])
    prefixes = [""] if networks == 1 else [f"networks.{number}." for number in range(networks)]
    size = read_preprocessing(described)[0].size
    if is_sized(backbone) and size != native_size(backbone):
        with torch.device("meta"):
            native = _make_network(described, native_size(backbone)).state_dict()
        _compare(weights.keys(), {prefix + name for prefix in prefixes for name in native})
        alike = [tensor.numel() for name, tensor in native.items() if weights[prefixes[0] + name] == tensor.shape]
        if 2 * sum(alike) < sum(tensor.numel() for tensor in native.values()):
            raise ValueError("the weights do not match the network: most shapes differ")
    with torch.device("meta"):
        network = _make_network(described, size)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    tables = sum(buffer.nbytes for name, buffer in network.named_buffers() if name not in shapes)
    if networks * tables > MAX_TABLES:
        raise ValueError(f"the network requires more than {MAX_TABLES >> 20} MiB of precomputed tables")
    _compare(weights.items(), {(prefix + name, shape) for prefix in prefixes for name, shape in shapes.items()})


def _compare(stored: Set[Any], expected: Set[Any]) -> None:
    """Raise an error if the stored names, or (name, shape) pairs, differ from the expected ones."""
    if differing := stored ^ expected:
        wrong = min(entry if isinstance(entry, str) else entry[0] for entry in differing)
        raise ValueError(f"the weights do not match the network: {wrong}")


def _check_length(path: Path) -> None:
    """Raise an error if the size of a weights file does not match its header. Runs before the file is mapped."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_DESCRIPTION:
            raise ValueError(f"the header of {path.name} is too large: {length} bytes")
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    if path.stat().st_size != 8 + length + max(ends, default=0):
        raise ValueError(f"the size of {path.name} does not match its header")


def _check_fitted(tensors: Mapping[str, Tensor], score: Score) -> None:
    """Raise an error unless the tensors match the fitted score and are finite."""
    fields = set() if score.fitter is None else {field.name for field in dataclasses.fields(score.fitter)}
    if tensors.keys() != fields:
        raise ValueError(f"the tensors in the weights file do not match score {score.name!r}")
    if wrong := [key for key, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise ValueError(f"tensor {wrong[0]} of score {score.name!r} contains NaN or infinity")


def _check_known(domains: Mapping[str, Tensor]) -> None:
    """Raise an error unless the confidences are sorted numbers."""
    for domain, confidence in domains.items():
        size = confidence.dim() == 1 and 0 < len(confidence) <= MAX_KNOWN
        if not size or confidence.dtype != torch.float64 or not bool((confidence[1:] >= confidence[:-1]).all()):
            raise ValueError(f"confidences of known images from {domain!r} must be sorted numbers")
        if bool(confidence.isnan().any()):
            raise ValueError(f"confidences of known images from {domain!r} contain NaN")


def _reason(error: Exception) -> str:
    """Return the first line of an error message, or name the missing entry of a KeyError."""
    return f"missing entry {error}" if isinstance(error, KeyError) else first_line(error)


def unusable(path: Path, error: Exception) -> MedicError:
    """Return the error for a model whose files do not match, are damaged or cannot be read."""
    if isinstance(error, OSError):
        return unread(error.filename or path, error)
    return MedicError(f"cannot load the model in {path}: {_reason(error)}")
