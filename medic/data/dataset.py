"""Datasets: a lazy one is found with its names, then loaded as images and labels."""

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
    """Positions (N,) in `domains`."""
    label: Tensor
    """Positions (N,) in `classes`."""
    paths: tuple[str, ...]
    """A readable name for each image."""
    hash: str
    """A fingerprint of names, labels and contents."""
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Further integer labels (N,) by name."""
    parts: tuple[Part, ...] | None = None
    """The official use of each image, if the benchmark publishes one."""
    parts_problem: str | None = None
    """Reason why official lists on disk cannot be used, if so."""
    frames: Tensor | None = None
    """The height and width (N, 2) of each image before it was resized to a square, if it was."""


@dataclass(frozen=True)
class LazyDataset(ABC):
    """A dataset that was found, with the names of its domains and classes, but not decoded."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of further attributes, which a grid can split."""
        return ()

    @abstractmethod
    def load(self, storage: Storage) -> Dataset:
        """Return the dataset; images are decoded, or read from a store."""

    @abstractmethod
    def look(self, storage: Storage) -> Dataset:
        """Return the dataset without writing anything; files are decoded only when their images are used."""


@dataclass(frozen=True)
class Generated(LazyDataset):
    """A dataset whose images are computed.

    `draw` returns pixels (N, C, H, W) uint8, domain (N,), label (N,) and a name for each image.
    """

    draw: Callable[[], tuple[Tensor, Tensor, Tensor, list[str]]]

    def load(self, storage: Storage) -> Dataset:
        """Compute the images and keep them in memory."""
        if storage.where in ("map", "stream"):
            raise MedicError(f"store {storage.where!r}: dataset {self.name!r} is small and kept in memory; use auto")
        pixels, domain, label, paths = self.draw()
        if pixels.shape[-1] != storage.size:
            raise MedicError(f"dataset {self.name!r} has images of {pixels.shape[-1]} px, not {storage.size}")
        place = choose_place(pixels.nbytes, storage.where, storage.device)
        digest = hashlib.sha256("\n".join((*self.domains, *self.classes, *paths)).encode())
        for values in (domain, label, pixels):
            digest.update(values.numpy().tobytes())
        images = Resident(pixels.to(storage.device if place == "gpu" else "cpu"))
        return Dataset(
            self.name, self.domains, self.classes, images, domain, label, tuple(paths), digest.hexdigest()
        )  # fmt: skip

    def look(self, storage: Storage) -> Dataset:
        """Compute the images on the CPU."""
        where = "ram" if storage.where == "gpu" else storage.where
        return self.load(replace(storage, where=where, device=torch.device("cpu")))
