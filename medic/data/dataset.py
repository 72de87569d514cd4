"""Datasets: `LazyDataset` knows only domain and class names, `Dataset` also holds images and labels."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from medic.data.images import Images, Resident
from medic.data.store import Storage, choose_place
from medic.errors import MedicError

Part = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Dataset:
    """N decoded images with their domains and classes."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    images: Images
    domain: Tensor
    """Indices into `domains`, of shape (N,)."""
    label: Tensor
    """Indices into `classes`, of shape (N,)."""
    paths: tuple[str, ...]
    """A readable name for each image."""
    hash: str
    """A fingerprint of names, labels and pixels."""
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Additional integer labels of shape (N,), by name."""
    parts: tuple[Part, ...] | None = None
    """The official split that each image belongs to, if the benchmark publishes one."""
    parts_problem: str | None = None
    """Why the official lists on disk cannot be used, if they cannot."""
    frames: Tensor | None = None
    """Original image heights and widths, of shape (N, 2), if the images were resized to squares."""


@dataclass(frozen=True)
class LazyDataset(ABC):
    """A dataset whose domain and class names are known, but whose images have not been decoded."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of additional attributes that a grid can split by."""
        return ()

    @abstractmethod
    def load(self, storage: Storage) -> Dataset:
        """Load the dataset, by decoding the images or reading them from an image store."""

    @abstractmethod
    def look(self, storage: Storage) -> Dataset:
        """Open the dataset without writing anything. Image files are decoded on demand."""


@dataclass(frozen=True)
class Generated(LazyDataset):
    """A dataset whose images are generated.

    `draw` returns uint8 pixels of shape (N, C, H, W), domains and labels of shape (N,), and N image names.
    """

    draw: Callable[[], tuple[Tensor, Tensor, Tensor, list[str]]]

    def load(self, storage: Storage) -> Dataset:
        """Generate all images and keep them in memory."""
        if storage.where in ("map", "stream"):
            raise MedicError(f"store {storage.where!r} requires image files, but {self.name!r} is generated: use auto")
        pixels, domain, label, paths = self.draw()
        if pixels.shape[-1] != storage.size:
            raise MedicError(f"image size of dataset {self.name!r} must be {pixels.shape[-1]}, got {storage.size}")
        place = choose_place(pixels.nbytes, storage.where, storage.device)
        digest = hashlib.sha256("\n".join((*self.domains, *self.classes, *paths)).encode())
        for values in (domain, label, pixels):
            digest.update(values.numpy().tobytes())
        images = Resident(pixels.to(storage.device if place == "gpu" else "cpu"))
        return Dataset(
            self.name, self.domains, self.classes, images, domain, label, tuple(paths), digest.hexdigest()
        )  # fmt: skip

    def look(self, storage: Storage) -> Dataset:
        """Generate all images and keep them in CPU memory."""
        where = "ram" if storage.where == "gpu" else storage.where
        return self.load(replace(storage, where=where, device=torch.device("cpu")))
