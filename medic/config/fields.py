"""Declared settings of a run, each with its help, limits and choices beside its default. Nothing here imports torch."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Self

from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, Limits


def setting(
    default: Any,
    help: str,
    *,
    limits: Limits | None = None,
    choices: Iterable[str] = (),
    local: bool = False,
    takes: str = "NAME",
) -> Any:
    """Declare a setting of a run with its line of help.

    A `local` setting does not change the result and is no part of a run's identity. `takes` stands for the value in
    help.
    """
    metadata = {"help": help, "limits": limits, "choices": tuple(choices), "local": local, "takes": takes}
    return dataclasses.field(default=default, metadata=metadata)


class Spec:
    """A frozen group of settings. A subclass is a dataclass of declared settings, `@dataclass(frozen=True)`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the spec of those settings that belong to it."""
        names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in settings.items() if name in names})


def check_setting(field: "dataclasses.Field[Any]", value: Any) -> None:
    """Refuse a value out of a setting's limits, or none of its choices; None leaves the setting open."""
    limits, choices = field.metadata["limits"], field.metadata["choices"]
    if value is not None and limits is not None and not (isinstance(value, int | float) and limits.allow(value)):
        wanted = limits.wanted(limits is COUNT or isinstance(value, int))
        raise MedicError(f"{field.name} is {value!r}: give {wanted}")
    if value is not None and choices:
        check_choice(field.name, value, choices)
