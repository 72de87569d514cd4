"""Declarations of settings: help, default, limits and choices, next to the type of the value.

A setting is a field of a `TypedDict`: `lr: Annotated[float, setting("learning rate", …)]`. Nothing here imports torch.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, get_args, get_origin

from medic.errors import MedicError, check_choice
from medic.utils.parts import Limits

PathLike = str | os.PathLike[str]
"""A path, as a string or a path object."""


class Items(Protocol):
    """A sequence, such as a list or a torch dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Any: ...


DatasetSource = Items | Callable[[], Items]
"""Your own images as Python objects. `medic.train` registers them under a name."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A declared setting. Its name, type and group come from the `TypedDict` that declares it."""

    help: str
    default: Any
    """The value unless a benchmark, starting point, protocol, method or user overrides it. None means "none"."""
    default_rule: str
    """The rule that determines the default, as printed in help. Empty for a constant default."""
    limits: Limits | None
    local: bool
    """Whether the setting leaves the result unchanged. Local settings are not part of a run's identity."""
    takes: str
    """Placeholder for the value in help."""
    name: str = ""
    hint: Any = None
    group: str = ""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The accepted types. Paths are treated as strings."""
        kinds = get_args(self.hint) if get_origin(self.hint) is UnionType else (self.hint,)
        plain = (str if get_origin(kind) is Literal else kind for kind in kinds)
        objects = (NoneType, Items)
        return tuple(kind for kind in plain if kind not in objects and get_origin(kind) not in (os.PathLike, Callable))

    @property
    def choices(self) -> tuple[str, ...]:
        """The accepted values, if the type is a `Literal`."""
        return get_args(self.hint) if get_origin(self.hint) is Literal else ()

    @property
    def default_text(self) -> str:
        """The default as printed in help. Empty for a setting that is off by default."""
        return self.default_rule or ("" if self.default is None or self.default is False else str(self.default))

    def check(self, value: Any) -> None:
        """Raise an error if a value of an accepted type is outside the limits or not among the choices."""
        if self.limits is not None and not (isinstance(value, int | float) and self.limits.allow(value)):
            wanted = self.limits.wanted(whole=float not in self.kinds)
            raise MedicError(f"{self.name} must be {wanted}, got {value!r}")
        if self.choices:
            check_choice(self.name, value, self.choices)


def setting(
    help: str,
    default: Any = None,
    *,
    default_rule: str = "",
    limits: Limits | None = None,
    local: bool = False,
    takes: str = "NAME",
) -> Setting:
    """Declare a setting."""
    return Setting(help=help, default=default, default_rule=default_rule, limits=limits, local=local, takes=takes)
