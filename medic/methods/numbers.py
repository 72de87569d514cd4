"""The numbers of a method's own: which there are, and what a run gives them."""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from medic.errors import MedicError, check_choice

T = TypeVar("T")
_ELSEWHERE = ("lr", "bn_rate")
"""Fields of strategies that a run sets by options of their own."""


class Numbers:
    """Numbers by name, handed to the parts of a method that have them; each part says what it has by its arguments.

    `used` are those that were handed out, defaults among them.
    """

    def __init__(self, given: Mapping[str, Any] | str | None) -> None:
        self.given = _parse(given)
        self.used: dict[str, Any] = {}

    def make(self, part: Callable[..., T]) -> T:
        """A part with the numbers that are its arguments."""
        arguments = inspect.signature(part).parameters.values()
        return part(**self._take({argument.name: argument.default for argument in arguments}))

    def changed(self, part: T) -> T:
        """A copy of a part that is a dataclass, with the numbers that are its fields."""
        fields = [field.name for field in dataclasses.fields(part) if field.name not in _ELSEWHERE]  # type: ignore[arg-type]
        numbers = {name: getattr(part, name) for name in fields}
        return dataclasses.replace(part, **self._take(numbers))  # type: ignore[type-var]

    def check(self, method: str) -> None:
        """Refuse numbers that no part has taken."""
        for name in self.given:
            if name not in self.used:
                if not self.used:
                    raise MedicError(f"hparams {name!r}: method {method!r} has no numbers of its own")
                check_choice(f"number of method {method!r}", name, self.used)

    def _take(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        numbers = {name: value for name, value in defaults.items() if type(value) in (int, float)}
        taken = {name: _converted(name, self.given.get(name, value), type(value)) for name, value in numbers.items()}
        self.used |= taken
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
    if kind is int and value != int(value):
        raise MedicError(f"hparams {name} is {value}: give a whole number")
    return kind(value)
