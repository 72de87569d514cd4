"""Where numbers are searched for: DomainBed's laws, for its two families of data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Rate(NamedTuple):
    """A learning rate for each of DomainBed's two families of data; None leaves it to the benchmark."""

    small: float | None
    """For images of 32 pixels or fewer."""
    large: float | None

    def at(self, image_size: int) -> float | None:
        """The rate for images of this side."""
        return self.small if image_size <= 32 else self.large


DOMAINBED_ADAM = Rate(small=1e-3, large=5e-5)
"""DomainBed's rates of Adam."""


@dataclass(frozen=True)
class Range:
    """Uniform between two ends, or `base` to the power of that; `whole` cuts off what is behind the point.

    `name` is DomainBed's, from which its draws are seeded.
    """

    name: str
    low: float
    high: float
    base: float | None = None
    whole: bool = False

    def __str__(self) -> str:
        power = "" if self.base is None else f"{self.base:g}^"
        law = f"{power}U({self.low:g}, {self.high:g})"
        return f"int({law})" if self.whole else law

    def draw(self, random: np.random.RandomState) -> float | int:
        """One value."""
        exponent = random.uniform(self.low, self.high)
        value = exponent if self.base is None else self.base**exponent
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Choice:
    """One of some values, each as likely; `name` as in `Range`."""

    name: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        return "one of " + ", ".join(f"{value:g}" for value in self.values)

    def draw(self, random: np.random.RandomState) -> float:
        """One value."""
        return float(random.choice(self.values))


Law = Range | Choice
"""What a number is drawn from."""


def uniform(name: str, low: float, high: float, whole: bool = False) -> Range:
    """Between two ends."""
    return Range(name, low, high, whole=whole)


def log10(name: str, low: float, high: float, whole: bool = False) -> Range:
    """Ten to the power of what lies between two ends."""
    return Range(name, low, high, 10.0, whole)


_LARGE: Mapping[str, Law] = {
    "lr": log10("lr", -5, -3.5),
    "weight_decay": log10("weight_decay", -6, -2),
    "batch_size": Range("batch_size", 3, 5.5, 2.0, whole=True),
}

SHARED: Mapping[str, Mapping[str, Law]] = {
    "small": {"lr": log10("lr", -4.5, -2.5), "batch_size": Range("batch_size", 3, 9, 2.0, whole=True)},
    "large": _LARGE,
    "domainnet": {**_LARGE, "batch_size": Range("batch_size", 3, 5, 2.0, whole=True)},
}
"""The ranges that all share, for images of up to 32 pixels, for larger ones, and for DomainNet."""
