"""Datasets from Python objects: images in memory, or read one at a time."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medic.data.benchmarks import digits, own
from medic.data.benchmarks.base import Benchmark
from medic.data.dataset import Dataset, LazyDataset
from medic.data.decode import THREADS
from medic.data.images import Resident
from medic.data.inputs import AnyImage, ordered, to_square
from medic.data.store import Storage, choose_place
from medic.errors import MedicError


@dataclass(frozen=True)
class Collection(LazyDataset):
    """N images with their class and domain names. Loading decodes them into memory."""

    images: Sequence[AnyImage]
    class_names: tuple[str, ...]
    """The class of every image."""
    domain_names: tuple[str, ...]
    """The domain of every image."""

    def load(self, storage: Storage) -> Dataset:
        """Decode all images into memory."""
        if storage.where in ("map", "stream"):
            raise MedicError(f"store {storage.where!r} requires image files, but {self.name!r} has none: use auto")
        squares = list(ordered(lambda image: to_square(image, storage.size), self.images, 2 * THREADS))
        pixels = torch.from_numpy(np.stack([square for square, _ in squares]))
        frames = torch.tensor([frame for _, frame in squares])
        domain, label = (
            torch.tensor([names.index(name) for name in of_images])
            for names, of_images in ((self.domains, self.domain_names), (self.classes, self.class_names))
        )
        paths = [
            str(image) if isinstance(image, str | Path) else f"{place}/{name}/{number}"
            for number, (image, place, name) in enumerate(
                zip(self.images, self.domain_names, self.class_names, strict=True)
            )
        ]
        digest = hashlib.sha256("\0".join((*self.domain_names, *self.class_names)).encode())
        digest.update(pixels.numpy().tobytes())
        place = choose_place(pixels.nbytes, storage.where, storage.device)
        return Dataset(
            name=self.name,
            domains=self.domains,
            classes=self.classes,
            images=Resident(pixels.to(storage.device if place == "gpu" else "cpu")),
            domain=domain,
            label=label,
            paths=tuple(paths),
            hash=digest.hexdigest(),
            frames=frames,
        )

    def look(self, storage: Storage) -> Dataset:
        """Decode all images into CPU memory."""
        where = "ram" if storage.where == "gpu" else storage.where
        return self.load(replace(storage, where=where, device=torch.device("cpu")))


def make_collection(name: str, source: Any) -> LazyDataset:
    """Build a named dataset from Python objects.

    `source` is a `LazyDataset`, a sequence of (image, class, domain), or three sequences: images, classes and domains.
    Classes and domains are names or numbers. If `source` has `classes` and `domains` attributes, numbers are indices
    into these lists of names.
    """
    if isinstance(source, LazyDataset):
        return replace(source, name=name)
    images, labels, places = _columns(source)
    if not len(images) == len(labels) == len(places):
        raise MedicError(
            f"the dataset has {len(images)} images, {len(labels)} classes and {len(places)} domains: pass one class "
            "and one domain per image"
        )
    if not len(images):
        raise MedicError("the dataset is empty: pass at least one image")
    labels = _named(labels, getattr(source, "classes", None))
    places = _named(places, getattr(source, "domains", None))
    return Collection(name, _sorted(places), _sorted(labels), images, labels, places)


def _columns(source: Any) -> tuple[Any, Any, Any]:
    """Return images, classes and domains as three sequences."""
    if isinstance(source, tuple | list) and len(source) == 3 and all(hasattr(part, "__len__") for part in source):
        one = source[0]
        if not isinstance(one, str | bytes) and not (isinstance(one, tuple) and len(one) == 3):
            return source[0], source[1], source[2]
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        kinds = "a sequence of (image, class, domain) or three sequences (images, classes, domains)"
        raise MedicError(f"the dataset must be {kinds}, got {type(source).__name__}")
    try:
        items = [source[number] for number in range(len(source))]
    except (KeyError, TypeError) as error:  # a dict or a table
        raise MedicError(f"the dataset must be a sequence, got {type(source).__name__}") from error
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 3:
            parts = f" of length {len(item)}" if isinstance(item, tuple | list) else ""
            raise MedicError(f"each dataset item must be (image, class, domain), got {type(item).__name__}{parts}")
    images, labels, places = zip(*items, strict=True) if items else ((), (), ())
    return list(images), labels, places


def _named(values: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    """Convert classes or domains to names. If `names` is given, numbers are indices into it."""
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    if names is not None and all(type(value) is int for value in plain):
        unnamed = next((value for value in plain if not 0 <= value < len(names)), None)
        if unnamed is not None:
            raise MedicError(f"label {unnamed} has no name: the dataset names only {len(names)} labels")
        return tuple(str(names[value]) for value in plain)
    return tuple(map(str, plain))


def _sorted(names: Sequence[str]) -> tuple[str, ...]:
    """Return the distinct names in order. If all names are numbers, sort by value."""
    different = set(names)
    return tuple(sorted(different, key=int if all(name.isdecimal() for name in different) else str))


def make_benchmark(name: str, source: Any) -> Benchmark:
    """Build a benchmark from Python objects.

    Small images get the default settings of `digits`; all others get those of `folder`.
    """
    dataset = make_collection(name, source)
    first = dataset.images[0] if isinstance(dataset, Collection) else None
    small = not isinstance(first, str | Path | bytes | None) and max(to_square(first, 1)[1]) <= digits.SIZE
    like = digits.BENCHMARK if small else own.FOLDER

    def read(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
        if root is not None:
            raise MedicError(f"dataset {name!r} is a Python object and does not accept --root")
        return dataset

    changes: dict[str, Any] = {"domains": dataset.domains, "classes": dataset.classes, "split": None, "counts": {}}
    return replace(like, name=name, description="images from a Python object", reader=read, built_in=True, **changes)
