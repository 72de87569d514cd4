"""A dataset: images, and what is known of each; found first, loaded when it is needed."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from medic.data.images import Images, Resident
from medic.data.listing import ImageList, Part
from medic.data.store import OnBad, Report, Where, choose_place, look, open_store
from medic.errors import MedicError


@dataclass(frozen=True)
class Dataset:
    """N images of some classes in some domains.

    `domain` and `label` (N,) are positions in `domains` and `classes`, `paths` name each image for people, `hash` is a
    fingerprint of names, labels and contents. `attributes` holds one integer label (N,) per further axis; `parts` says
    what each image is for, where the benchmark does.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    images: Images
    domain: Tensor
    label: Tensor
    paths: tuple[str, ...]
    hash: str
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    parts: tuple[Part, ...] | None = None
    parts_problem: str | None = None
    """Why official lists that are there cannot be used."""
    frames: Tensor | None = None
    """The height and width (N, 2) that each image had before it was squashed to a square, if it was."""


class Looked(NamedTuple):
    """What is known of a dataset whose images were not decoded, as a `Dataset` has it."""

    hash: str
    attributes: Mapping[str, Tensor]
    parts: tuple[Part, ...] | None


@dataclass(frozen=True)
class Storage:
    """How images are to be kept: their side in pixels, where, and what becomes of those that cannot be read."""

    size: int
    where: Where = "auto"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    on_bad: OnBad = "error"
    report: Report = lambda line: None


class Opened(Protocol):
    """A dataset that has been found, with its domains, classes and further axes, but not read yet."""

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of further attributes, which a grid can split."""

    def load(self, storage: Storage) -> Dataset:
        """Decode the images, or find them decoded."""


@dataclass(frozen=True)
class Listed:
    """Image files on disk. With `unique`, an image that a domain has twice counts once."""

    listing: ImageList
    unique: bool = False

    @property
    def domains(self) -> tuple[str, ...]:
        """The names of the domains."""
        return self.listing.domains

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.listing.classes

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of further attributes."""
        return tuple(self.listing.attributes)

    def load(self, storage: Storage) -> Dataset:
        """Decode the images, or find them decoded."""
        listing = self.listing
        store = open_store(
            listing, storage.size, storage.where, storage.device, storage.on_bad, storage.report, self.unique
        )
        attributes, parts = self._labels(store.kept)
        kept = torch.tensor(store.kept, dtype=torch.long)
        return Dataset(
            listing.name,
            listing.domains,
            listing.classes,
            store.images,
            listing.domain[kept],
            listing.label[kept],
            tuple(listing.names[row] for row in store.kept),
            store.hash,
            attributes,
            parts,
            listing.parts_problem,
            store.frames,
        )

    def look(self, storage: Storage) -> Looked:
        """Find out what would be loaded; nothing is written."""
        known = look(self.listing, storage.size, storage.on_bad, storage.report, self.unique)
        return Looked(known.hash, *self._labels(known.kept))

    def _labels(self, rows: Sequence[int]) -> tuple[dict[str, Tensor], tuple[Part, ...] | None]:
        """Further attributes of some images, and what each is for."""
        listing, kept = self.listing, torch.tensor(rows, dtype=torch.long)
        parts = None if listing.parts is None else tuple(listing.parts[row] for row in rows)
        return {name: values[kept] for name, values in listing.attributes.items()}, parts


class Drawn(NamedTuple):
    """Images that were made, not read: pixels (N, C, H, W) uint8, domain and label (N,), and a name for each."""

    pixels: Tensor
    domain: Tensor
    label: Tensor
    paths: list[str]


@dataclass(frozen=True)
class Built:
    """A dataset whose images are made by a function."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    build: Callable[[], Drawn]
    axes: tuple[str, ...] = ()

    def load(self, storage: Storage) -> Dataset:
        """Make the images; they are small and always kept in memory."""
        drawn = self.build()
        if drawn.pixels.shape[-1] != storage.size:
            raise MedicError(f"dataset {self.name!r} is made at {drawn.pixels.shape[-1]} px, not {storage.size}")
        if storage.where in ("map", "stream"):
            raise MedicError(f"store {storage.where!r}: dataset {self.name!r} is small and kept in memory; use auto")
        place = choose_place(drawn.pixels.nbytes, storage.where, storage.device)
        digest = hashlib.sha256("\n".join((*self.domains, *self.classes, *drawn.paths)).encode())
        for values in (drawn.domain, drawn.label, drawn.pixels):
            array: NDArray[Any] = values.contiguous().numpy()
            digest.update(array.tobytes())
        return Dataset(
            self.name,
            self.domains,
            self.classes,
            Resident(drawn.pixels.to(storage.device if place == "gpu" else "cpu")),
            drawn.domain,
            drawn.label,
            tuple(drawn.paths),
            digest.hexdigest(),
        )
