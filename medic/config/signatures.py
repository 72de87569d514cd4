"""Signatures and docstrings that name every setting, for `help()` and for completion in a notebook."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from medic.config.settings import SETTINGS

F = TypeVar("F", bound=Callable[..., Any])


def lists_settings(function: F) -> F:
    """Replace `**settings` in a function's signature with all settings, and list them in its docstring."""
    signature = inspect.signature(function)
    *others, _ = signature.parameters.values()
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=setting.hint)
        for name, setting in SETTINGS.items()
    ]
    function.__signature__ = signature.replace(parameters=[*others, *settings])  # type: ignore[attr-defined]
    function.__doc__ = f"{inspect.getdoc(function)}\n\n{describe_settings()}"
    return function


def describe_settings() -> str:
    """Return one line per setting: its name, what it means, and its default."""
    lines = ["Settings:"]
    for name, setting in SETTINGS.items():
        default = f" (default: {setting.default_text})" if setting.default_text else ""
        lines.append(f"    {name}: {setting.help}{default}")
    return "\n".join(lines)
