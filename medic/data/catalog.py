"""The benchmarks by name, each with the paper's settings for it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from medic.data import digits
from medic.data.cache import Arrays, cached
from medic.data.dataset import Dataset
from medic.errors import check_choice


@dataclass(frozen=True)
class Benchmark:
    """A dataset that can be asked for by name, and what a run on it uses unless told otherwise."""

    name: str
    description: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    known: tuple[str, ...]
    """The classes that training may see; the others are unknown."""
    image_size: int
    """The side of an image in pixels."""
    backbone: str
    augment: str
    lr: float
    """The rate of outer SGD on the mean task risk."""
    load: Callable[[], Dataset]


def load_digits() -> Dataset:
    """The built-in benchmark, drawn at first use and then kept in the cache."""

    def build() -> Arrays:
        images, domain, label = digits.render()
        return {"images": images, "domain": domain, "label": label}

    arrays = cached(f"digits-v{digits.VERSION}", build)
    images, domain, label = (torch.from_numpy(arrays[key]) for key in ("images", "domain", "label"))
    number: dict[tuple[int, int], int] = {}
    paths = []
    for cell in zip(domain.tolist(), label.tolist(), strict=True):
        number[cell] = number.get(cell, -1) + 1
        paths.append(f"{digits.DOMAINS[cell[0]]}/{digits.CLASSES[cell[1]]}/{number[cell]:03d}")
    return Dataset("digits", digits.DOMAINS, digits.CLASSES, images, domain, label, tuple(paths))


BENCHMARKS: dict[str, Benchmark] = {
    "digits": Benchmark(
        name="digits",
        description="built in: digits written by hand, printed, blended into photographs, and as on house walls",
        domains=digits.DOMAINS,
        classes=digits.CLASSES,
        known=digits.CLASSES[:6],
        image_size=digits.SIZE,
        backbone="convnet",
        augment="digits",
        lr=0.06,
        load=load_digits,
    ),
}


def benchmark(name: str) -> Benchmark:
    """Look a benchmark up by name."""
    return BENCHMARKS[check_choice("dataset", name, BENCHMARKS)]
