"""Parts of a method, such as penalties, strategies and samplers, and their hyperparameters.

A part is a dataclass. Its hyperparameters are fields declared with `hyperparameter`, which sets the default, the limits
and the search range. This module does not import torch.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from medic.errors import MedicError

if TYPE_CHECKING:
    import numpy as np

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Range:
    """A search range: a uniform value between `low` and `high`, or `base` raised to that value.

    `whole` truncates the result to an integer. `name` is DomainBed's name for the hyperparameter, and seeds the draws.
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

    def draw(self, random: "np.random.RandomState") -> float | int:
        """Draw one value."""
        exponent = random.uniform(self.low, self.high)
        value = exponent if self.base is None else self.base**exponent
        return int(value) if self.whole else float(value)

    def shortened(self, share: Fraction) -> "Range":
        """Return the range with its upper end multiplied by `share`."""
        high = self.high * float(share) if self.base is None else self.high + math.log(share, self.base)
        return dataclasses.replace(self, high=max(self.low, high))


@dataclass(frozen=True)
class Choice:
    """A search range of equally likely values. `name` has the same meaning as in `Range`."""

    name: str
    values: tuple[float, ...]

    def __str__(self) -> str:
        return "one of " + ", ".join(f"{value:g}" for value in self.values)

    def draw(self, random: "np.random.RandomState") -> float:
        """Draw one value."""
        return float(random.choice(self.values))


Law = Range | Choice
"""The search range of a hyperparameter."""


def uniform(name: str, low: float, high: float, whole: bool = False) -> Range:
    """Return a uniform range."""
    return Range(name, low, high, whole=whole)


def log10(name: str, low: float, high: float, whole: bool = False) -> Range:
    """Return a range that is uniform in log10."""
    return Range(name, low, high, 10.0, whole)


@dataclass(frozen=True)
class Limits:
    """Limits on a number: from `least` to `most`. `above` and `below` make the limits strict."""

    least: float = 0.0
    most: float = math.inf
    above: bool = False
    below: bool = False

    def allow(self, value: float) -> bool:
        """Return whether a value is finite and within the limits."""
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return low and high and -math.inf < value < math.inf  # `isfinite` fails for very large integers

    def __str__(self) -> str:
        low = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        high = f"{'below' if self.below else 'at most'} {self.most:g}"
        return " and ".join([low] * (self.least > -math.inf) + [high] * (self.most < math.inf))

    def wanted(self, whole: bool) -> str:
        """Describe the allowed values for an error message: `a whole number of at least 1`."""
        return f"{'a whole number' if whole else 'a number'} {self}".rstrip()


def check_range(owner: str, limits: Limits, **numbers: float) -> None:
    """Raise an error if any number passed as a keyword argument is outside the limits."""
    for name, value in numbers.items():
        if not limits.allow(value):
            raise MedicError(f"{name} of {owner} must be a number {limits}, got {value:g}")


def hyperparameter(
    default: Any,
    *,
    least: float = 0.0,
    most: float = math.inf,
    above: bool = False,
    below: bool = False,
    search: Law | None = None,
    on: Mapping[str, float] | None = None,
    run_length: int | None = None,
) -> Any:
    """Declare a hyperparameter of a part, with its default, limits and DomainBed's search range.

    `on` maps benchmarks to the authors' default, where it differs. A value of None turns the hyperparameter off.
    `run_length` is the number of iterations in the authors' runs, for a hyperparameter that counts steps: in a shorter
    run, its default and the upper end of its search range fall in proportion.
    """
    limits = Limits(least, most, above, below)
    metadata = {"limits": limits, "search": search, "on": on or {}, "run_length": run_length}
    return dataclasses.field(default=default, metadata=metadata)


def hyperparameters(kind: Any) -> dict[str, "dataclasses.Field[Any]"]:
    """Return the declared hyperparameters of a part's class, keyed by name."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return {field.name: field for field in fields if "search" in field.metadata}


def check_hyperparameters(part: Any) -> None:
    """Raise an error if a hyperparameter of a part is outside its limits."""
    for name, field in hyperparameters(part).items():
        if (value := getattr(part, name)) is not None:
            check_range(type(part).__name__, field.metadata["limits"], **{name: value})


def _share(field: "dataclasses.Field[Any]", iterations: int | None) -> Fraction:
    """Return the factor for the default and the search range of a hyperparameter in a run of this length."""
    run_length = field.metadata["run_length"]
    if run_length is None or iterations is None:
        return Fraction(1)
    return Fraction(min(iterations, run_length), run_length)


def _default(field: "dataclasses.Field[Any]", dataset: str | None, iterations: int | None) -> Any:
    value, share = field.metadata["on"].get(dataset, field.default), _share(field, iterations)
    return value if share == 1 or value is None else int(value * share)


@dataclass(frozen=True)
class Part(Generic[T_co]):
    """A frozen description of a part: its name, its class, and the values that differ from the class's defaults.

    `build` creates a new part on every call, so that runs do not share state.
    """

    name: str
    kind: Callable[..., T_co]
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def build(self, **values: Any) -> T_co:
        """Create the part. `values` override those in the description."""
        return self.kind(**{**self.values, **values})

    def changed(self, **values: Any) -> "Part[T_co]":
        """Return the same part with different values."""
        return dataclasses.replace(self, values={**self.values, **values})

    def hyperparameters(self, dataset: str | None = None, iterations: int | None = None) -> dict[str, Any]:
        """Return the hyperparameter values, using the defaults for a dataset and a number of iterations."""
        values = {
            name: self.values.get(name, _default(field, dataset, iterations))
            for name, field in hyperparameters(self.kind).items()
        }
        return {name: value for name, value in values.items() if value is not None}

    def search(self, iterations: int | None = None) -> dict[str, Law]:
        """Return the search ranges of the hyperparameters that have one, for a number of iterations."""
        ranges: dict[str, Law] = {}
        for name, field in hyperparameters(self.kind).items():
            if (law := field.metadata["search"]) is not None:
                share = _share(field, iterations)
                ranges[name] = law.shortened(share) if share < 1 and isinstance(law, Range) else law
        return ranges


ANY = Limits(-math.inf)
COUNT = Limits(1)
POSITIVE = Limits(0, above=True)
NONNEGATIVE = Limits(0)
FRACTION = Limits(0, 1, above=True, below=True)
