"""The model file: weights in `model.safetensors`, and in `model.json` everything that is needed to use them.

The two files suffice, are plain data, and may come from a stranger: nothing in them is executed, and a network is only
made if the weights in the file are its weights.
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
"""The format that is written, and the oldest one that is read: version 0.3 wrote 2, without a reference."""
CHECKSUM = "checksum"
"""The entry of the description with the checksum of all others. Version 0.3 wrote none."""
SCORE = "score/"
"""The prefix of the tensors of a fitted score, in the file of weights."""
REFERENCE = "reference/"
"""The prefix of the tensors that `medic watch` compares new images with, in the file of weights."""
KNOWN = "known/"
"""The prefix of confidences of known images, by domain, in the file of weights."""
MAX_KNOWN = 10_000
"""The most confidences of a domain that are kept."""
MAX_DESCRIPTION = 2**24
"""The limit of the description in bytes: a million classes."""
MAX_NETWORKS = 100
"""More networks than any run has: one per source domain."""
MAX_SIZE = 4096
"""The limit of an image's side in pixels, which a batch is allocated by."""
MAX_VIEWS = 1000
MAX_TABLES = 2**28
"""The limit of tensors that a network computes when it is made, in bytes beyond those of its weights."""


@dataclass(frozen=True)
class HeldOut:
    """Statistics of held-out images, which a model file keeps beside the weights."""

    known: Mapping[str, Tensor] = field(default_factory=dict)
    """Sorted confidences (N,) of known images, by domain, for p-values."""
    reference: Reference | None = None
    """The images that `medic watch` compares new images with; None if there are too few."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Everything by its name in the file of weights."""
        compared = {} if self.reference is None else self.reference.tensors
        return {
            **{f"{KNOWN}{domain}": confidence for domain, confidence in self.known.items()},
            **{f"{REFERENCE}{name}": tensor for name, tensor in compared.items()},
        }


def keep_known(domains: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the confidences of known images as a file keeps them: sorted, and at most `MAX_KNOWN` of a domain."""
    kept = {}
    for domain, confidence in domains.items():
        ordered = confidence.detach().cpu().double().sort().values
        chosen = torch.linspace(0, len(ordered) - 1, min(MAX_KNOWN, len(ordered)), dtype=torch.float64)
        kept[domain] = ordered[chosen.round().long()]
    return kept


def write_model(
    folder: Path, network: nn.Module, score: Score, held_out: HeldOut, described: Mapping[str, Any]
) -> None:
    """Write both files; the description gains the format, the checksum of the weights, and its own."""
    fitted = score.function.tensors if isinstance(score.function, Fitted) else {}
    tensors = {
        **network.state_dict(),
        **{f"{SCORE}{name}": tensor for name, tensor in fitted.items()},
        **held_out.tensors,
    }
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    with atomic_write(folder / WEIGHTS) as file:
        file.write(content)
    sealed = {"format": FORMAT, **described, "sha256": hashlib.sha256(content).hexdigest()}
    sealed[CHECKSUM] = _checksum(json.loads(json.dumps(sealed)))
    write_text(folder / DESCRIPTION, json.dumps(sealed, indent=2, ensure_ascii=False) + "\n")


def _checksum(described: Mapping[str, Any]) -> str:
    """Return the checksum of a description without its own entry, whatever the order and the layout of the file."""
    content = {name: value for name, value in described.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_description(folder: Path) -> dict[str, Any]:
    """Read and check the description of a model."""
    path = folder / DESCRIPTION
    try:
        if path.stat().st_size > MAX_DESCRIPTION:
            raise MedicError(f"{path} has more than {MAX_DESCRIPTION >> 20} MiB, so it is not that of a model")
        described = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
        number = described["format"]
    except OSError as error:
        raise unread(path, error) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, MedicError):
            raise
        raise MedicError(f"{path} is not the description of a model: {_reason(error)}") from error
    if type(number) is not int or not OLDEST <= number <= FORMAT:
        newer = isinstance(number, int) and number > FORMAT
        way = "a newer version wrote it: upgrade medic" if newer else "an earlier one wrote it: train the model again"
        raise MedicError(f"{path} has the format {number!r} and this version reads {OLDEST} to {FORMAT}; {way}")
    if described.get(CHECKSUM, (right := _checksum(described))) != right:
        way = f"copy the model again, or if you edited {path.name} yourself, remove its entry {CHECKSUM!r}"
        raise MedicError(f"{path} is not as it was written: {way}")
    return dict(described)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a JSON object, none of which may come twice: programs disagree on which one counts."""
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"its entry {name!r} comes twice")
        entries[name] = value
    return entries


def read_preprocessing(described: Mapping[str, Any]) -> tuple[Preprocessing, int]:
    """Return the preprocessing of a description, and the side in pixels at which images are decoded."""
    fields = described["preprocessing"]
    if fields["resampling"] != "bilinear" or fields["upright"] is not True:
        raise ValueError(f"preprocessing {fields['resampling']!r} is not of this version")
    mean, std = ([_number(value) for value in fields[name]] for name in ("mean", "std"))
    size, decoded = fields["size"], fields["decoded"]
    sides = all(type(side) is int and 0 < side <= MAX_SIZE for side in (size, decoded))
    if not sides or len(mean) != len(std) or not all(map(math.isfinite, mean + std)) or 0 in std:
        raise ValueError("its preprocessing is impossible")
    return Preprocessing(tuple(mean), tuple(std), size), decoded


def _number(value: Any) -> float:
    """Return a number of a description; raise for text, true and false."""
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def describe_preprocessing(preprocessing: Preprocessing, decoded: int) -> dict[str, Any]:
    """Return how an image becomes an input: upright by its EXIF, a square of `decoded` pixels, then of `size`."""
    return {"upright": True, "resampling": "bilinear", "decoded": decoded, **asdict(preprocessing)}


def read_network(folder: Path, described: Mapping[str, Any]) -> tuple[Classifier | Ensemble, Score, HeldOut]:
    """Make the network in evaluation mode, the score with its fitted state, and the statistics of held-out images."""
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
        raise ValueError(f"it has {networks!r} networks")
    return networks


def _make_network(described: Mapping[str, Any], size: int, networks: int = 1) -> Classifier | Ensemble:
    """Make the described network for images of `size` pixels a side, or an ensemble of several."""
    import medic.systems  # noqa: F401, which registers its heads

    made, (preprocessing, _) = described["model"], read_preprocessing(described)
    pool = check_choice("pool", made.get("pool", OWN), POOLS)
    backbones = [create_backbone(str(made["backbone"]), size=size, pool=pool) for _ in range(networks)]
    if len(backbones[0].preprocessing.mean) != len(preprocessing.mean):
        raise ValueError("its preprocessing is not that of its backbone")
    scaled = made.get("scaled", False)
    if scaled is not True and scaled is not False:
        raise ValueError(f"its entry 'scaled' is {scaled!r}, which must be true or false")
    return assemble(backbones, len(read_classes(described)), str(made["head"]), scaled)


def read_classes(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the known classes."""
    classes = described["classes"]
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise ValueError("its classes are not a list of names")
    if len(set(classes)) < len(classes):
        raise ValueError("two of its classes have the same name")
    check_class_names(classes)
    return tuple(classes)


def read_threshold(described: Mapping[str, Any]) -> Threshold:
    """Return the threshold."""
    threshold = described["threshold"]
    value, displayed = _number(threshold["value"]), threshold["probability"]
    if math.isnan(value):
        raise ValueError("its threshold is not a number")
    probability = None if displayed is None else _number(displayed)
    if probability is not None and not abs(torch.tensor(value).double().sigmoid().item() - probability) < 1e-6:
        raise ValueError(f"its threshold {value:g} is not that of the probability {probability:g}")
    if not isinstance(threshold["rule"], str) or has_controls(threshold["rule"]):
        raise ValueError(f"the rule of its threshold is {threshold['rule']!r}")
    return Threshold(value, threshold["rule"], probability)


def read_learned(described: Mapping[str, Any]) -> bool:
    """Return whether training learned anything; True for models written before version 0.4, which do not say."""
    provenance = described.get("provenance")
    learned = provenance.get("learned", True) if isinstance(provenance, Mapping) else True
    if learned is not True and learned is not False:
        raise ValueError(f"its provenance has 'learned': {learned!r}, which must be true or false")
    return learned


def _read_tensors(path: Path, described: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights, after their names and shapes were compared with those of the described network."""
    _check_length(path)
    with safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, not a mapping
        _check_shapes(
            {name: shape for name, shape in shapes.items() if not name.startswith((SCORE, REFERENCE, KNOWN))}, described
        )
        with path.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != described["sha256"]:
                raise ValueError(f"{path.name} is not the file that was written with it")
        return {name: file.get_tensor(name) for name in shapes}


def _check_shapes(weights: Mapping[str, tuple[int, ...]], described: Mapping[str, Any]) -> None:
    """Refuse weights with other names or shapes than those of the described network.

    A description of 1 kB can ask for a network that takes minutes to make. So one network is made, without storage, and
    stands for all networks of an ensemble. Before it is made for large images, which can take a minute, the file must
    have the same names, and most of the weights, as the network for images of its native size.
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
            raise ValueError("its weights are not those of its network: most shapes differ")
    with torch.device("meta"):
        network = _make_network(described, size)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    tables = sum(buffer.nbytes for name, buffer in network.named_buffers() if name not in shapes)
    if networks * tables > MAX_TABLES:
        raise ValueError(f"its network needs tables of more than {MAX_TABLES >> 20} MiB")
    _compare(weights.items(), {(prefix + name, shape) for prefix in prefixes for name, shape in shapes.items()})


def _compare(stored: Set[Any], expected: Set[Any]) -> None:
    """Raise an error if the names, or the pairs of name and shape, are not those of the network."""
    if differing := stored ^ expected:
        wrong = min(entry if isinstance(entry, str) else entry[0] for entry in differing)
        raise ValueError(f"its weights are not those of its network: {wrong}")


def _check_length(path: Path) -> None:
    """Refuse weights whose file is not as long as their header says, before the file is mapped into memory."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_DESCRIPTION:
            raise ValueError(f"{path.name} has a header of {length} bytes")
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    if path.stat().st_size != 8 + length + max(ends, default=0):
        raise ValueError(f"{path.name} is not as long as its header says")


def _check_fitted(tensors: Mapping[str, Tensor], score: Score) -> None:
    """Refuse tensors that are not those of a fitted score."""
    fields = set() if score.fitter is None else {field.name for field in dataclasses.fields(score.fitter)}
    if tensors.keys() != fields:
        raise ValueError(f"its weights file lacks tensors that the score {score.name!r} needs, or has others")
    if wrong := [key for key, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise ValueError(f"the tensor {wrong[0]} of the score {score.name!r} has NaN or infinity")


def _check_known(domains: Mapping[str, Tensor]) -> None:
    """Refuse confidences that are not sorted numbers."""
    for domain, confidence in domains.items():
        size = confidence.dim() == 1 and 0 < len(confidence) <= MAX_KNOWN
        if not size or confidence.dtype != torch.float64 or not bool((confidence[1:] >= confidence[:-1]).all()):
            raise ValueError(f"the confidences of known images of {domain!r} are not sorted numbers")
        if bool(confidence.isnan().any()):
            raise ValueError(f"the confidences of known images of {domain!r} have NaN")


def _reason(error: Exception) -> str:
    """Return the first line of an error; a key that is missing is named as such."""
    return f"it lacks {error}" if isinstance(error, KeyError) else first_line(error)


def unusable(path: Path, error: Exception) -> MedicError:
    """Return the error for a model whose files do not fit together, are damaged or cannot be read."""
    if isinstance(error, OSError):
        return unread(error.filename or path, error)
    return MedicError(f"the model in {path} cannot be used: {_reason(error)}")
