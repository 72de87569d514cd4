"""Your own images as Python objects: in memory, or read one by one."""

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
    """N images with the class and the domain of each by name. They are decoded into memory."""

    images: Sequence[AnyImage]
    class_names: tuple[str, ...]
    """The class of every image."""
    domain_names: tuple[str, ...]
    """The domain of every image."""

    def load(self, storage: Storage) -> Dataset:
        """Decode the images, and keep them in memory."""
        if storage.where in ("map", "stream"):
            raise MedicError(f"store {storage.where!r}: dataset {self.name!r} is not made of files; use auto")
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
        """Decode the images on the CPU."""
        where = "ram" if storage.where == "gpu" else storage.where
        return self.load(replace(storage, where=where, device=torch.device("cpu")))


def make_collection(name: str, source: Any) -> LazyDataset:
    """Return a dataset of Python objects under a name.

    `source` is a dataset already, a sequence of (image, class, domain), or three sequences: images, their classes and
    their domains. Classes and domains are names or numbers; numbers are looked up in attributes `classes` and
    `domains` of the source, if it has them.
    """
    if isinstance(source, LazyDataset):
        return replace(source, name=name)
    images, labels, places = _columns(source)
    if not len(images) == len(labels) == len(places):
        raise MedicError(
            f"the dataset has {len(images)} images, {len(labels)} classes and {len(places)} domains: give one class "
            "and one domain per image"
        )
    if not len(images):
        raise MedicError("the dataset has no images: give at least one")
    labels = _named(labels, getattr(source, "classes", None))
    places = _named(places, getattr(source, "domains", None))
    return Collection(name, _sorted(places), _sorted(labels), images, labels, places)


def _columns(source: Any) -> tuple[Any, Any, Any]:
    """Return images, classes and domains, each as a sequence."""
    if isinstance(source, tuple | list) and len(source) == 3 and all(hasattr(part, "__len__") for part in source):
        one = source[0]
        if not isinstance(one, str | bytes) and not (isinstance(one, tuple) and len(one) == 3):
            return source[0], source[1], source[2]
    if not hasattr(source, "__len__") or not hasattr(source, "__getitem__"):
        kinds = "a sequence of (image, class, domain), or three sequences: images, classes and domains"
        raise MedicError(f"the dataset is a {type(source).__name__}: give {kinds}")
    try:
        items = [source[number] for number in range(len(source))]
    except (KeyError, TypeError) as error:  # a dict or a table
        raise MedicError(f"the dataset is a {type(source).__name__} without items 0, 1, …: give a sequence") from error
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 3:
            parts = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise MedicError(f"an item of the dataset is a {type(item).__name__}{parts}: give (image, class, domain)")
    images, labels, places = zip(*items, strict=True) if items else ((), (), ())
    return list(images), labels, places


def _named(values: Any, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return classes or domains by name; numbers are positions in `names`, if there are any."""
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    if names is not None and all(type(value) is int for value in plain):
        if not all(0 <= value < len(names) for value in plain):
            raise MedicError(f"the dataset has number {max(plain)}, but names of {len(names)}: give a name for each")
        return tuple(str(names[value]) for value in plain)
    return tuple(map(str, plain))


def _sorted(names: Sequence[str]) -> tuple[str, ...]:
    """Return different names in order; numbers by value."""
    different = set(names)
    return tuple(sorted(different, key=int if all(name.isdecimal() for name in different) else str))


def make_benchmark(name: str, source: Any) -> Benchmark:
    """Return a benchmark of Python objects: with the defaults of digits for small images, else of your own images."""
    dataset = make_collection(name, source)
    first = dataset.images[0] if isinstance(dataset, Collection) else None
    small = not isinstance(first, str | Path | bytes | None) and max(to_square(first, 1)[1]) <= digits.SIZE
    like = digits.BENCHMARK if small else own.FOLDER

    def read(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
        if root is not None:
            raise MedicError(f"dataset {name!r} is a Python object: it takes no --root")
        return dataset

    changes: dict[str, Any] = {"domains": dataset.domains, "classes": dataset.classes, "split": None, "counts": {}}
    return replace(like, name=name, description="images of a Python object", reader=read, built_in=True, **changes)
