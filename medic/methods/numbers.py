"""The numbers of a method's own: which there are, and what a run gives them."""

import dataclasses
import inspect
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from medic.errors import MedicError, check_choice

T = TypeVar("T")
_ELSEWHERE = ("lr", "bn_rate")
"""Fields of strategies that a run sets by options of their own."""


class Numbers:
    """Numbers by name, handed to the parts of a method that have them; each part says what it has by its arguments.

    A name that two parts have is written with that of the part: `hgp.beta`. What is not given is one of `usual`, where
    all are written so, or the default of the argument.
    """

    def __init__(self, given: Mapping[str, Any] | str | None, usual: Mapping[str, float] | None = None) -> None:
        self.given = _parse(given)
        self._usual = usual or {}
        self._taken: dict[tuple[str, str], Any] = {}

    def make(self, name: str, part: Callable[..., T], fixed: Collection[str] = ()) -> T:
        """A part with the numbers that are its arguments, but for those that are `fixed`."""
        arguments = [each for each in inspect.signature(part).parameters.values() if each.name not in fixed]
        return part(**self._take(name, {argument.name: argument.default for argument in arguments}))

    def changed(self, name: str, part: T) -> T:
        """A copy of a part that is a dataclass, with the numbers that are its fields."""
        fields = [field.name for field in dataclasses.fields(part) if field.name not in _ELSEWHERE]  # type: ignore[arg-type]
        numbers = {field: getattr(part, field) for field in fields}
        return dataclasses.replace(part, **self._take(name, numbers))  # type: ignore[type-var]

    @property
    def used(self) -> dict[str, Any]:
        """All numbers that were handed out, defaults among them, by the names that tell them apart."""
        owners = Counter(name for _, name in self._taken)
        return {name if owners[name] == 1 else f"{part}.{name}": value for (part, name), value in self._taken.items()}

    def check(self, method: str) -> None:
        """Refuse numbers that no part has taken, or that two parts have."""
        used = self.used
        for name in self.given:
            if not used:
                raise MedicError(f"hparams {name!r}: method {method!r} has no numbers of its own")
            parts = [part for part, own in self._taken if own == name]
            if len(parts) > 1:
                raise MedicError(f"hparams {name!r} is a number of {' and '.join(parts)}: write {parts[0]}.{name}")
            if tuple(name.split(".", 1)) not in self._taken:
                check_choice("number", name, used, f"of method {method!r}")

    def _take(self, part: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        numbers = {name: value for name, value in defaults.items() if type(value) in (int, float)}
        taken = {}
        for name, default in numbers.items():
            value = self.given.get(f"{part}.{name}", self.given.get(name, self._usual.get(f"{part}.{name}", default)))
            taken[name] = self._taken[part, name] = _converted(name, value, type(default))
        return taken


def _parse(given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """`weight=10,anneal=500`, the same as JSON, or a mapping."""
    if not isinstance(given, str):
        return dict(given or {})
    try:
        if given.lstrip().startswith("{"):
            return dict(json.loads(given))
        pairs = [part.partition("=") for part in given.split(",")]
        return {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        raise MedicError(f"hparams {given!r}: give numbers by name, as in weight=10,anneal=500") from None


def _converted(name: str, value: Any, kind: type) -> Any:
    """A number of the type that its default has."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MedicError(f"hparams {name} is {value!r}: give a number")
    if not math.isfinite(value):
        raise MedicError(f"hparams {name} is {value}: give a finite number")
    if kind is int and value != int(value):
        raise MedicError(f"hparams {name} is {value}: give a whole number")
    return kind(value)
