"""All settings of a run, as passed on the command line, in a YAML file or from Python.

Nothing here imports torch or executes code. For settings that name code, see `medic.config.imports` and
`medic.config.sources`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast, get_args, get_origin, get_type_hints

from medic.config.data import DataSettings
from medic.config.evaluation import EvaluationSettings
from medic.config.execution import ExecutionSettings
from medic.config.fields import Setting
from medic.config.model import ModelSettings
from medic.config.objective import ObjectiveSettings
from medic.config.optim import OptimSettings
from medic.config.run import RunSettings
from medic.config.tasks import TaskSettings
from medic.errors import MedicError, check_choice

ALIASES = {
    "target_domains": "target",
    "source_domains": "sources",
    "known_classes": "known",
    "algorithm": "method",
    "learning_rate": "lr",
    "output_dir": "output",
    "data_dir": "root",
    "holdout_fraction": "holdout",
}
"""Names that other codebases use for our settings."""

MEANINGS: Mapping[str, tuple[str, str]] = {
    "epochs": ("iterations", "training is measured in iterations of --images images: use --iterations N"),
    "resume": ("output", "to resume a stopped run, run the same command again without this option"),
    "num_workers": (
        "threads",
        "medic decodes images once, in threads: omit this option, or limit the CPU threads with --threads N",
    ),
    "gpu": ("device", "use --device cuda, and select the GPU with the environment variable CUDA_VISIBLE_DEVICES"),
    "gpus": ("device", "use --device cuda; `medic sweep` trains one run per GPU, torchrun one run on several GPUs"),
    "lr_scheduler": ("schedule", "use --schedule step, cosine or constant"),
    "batch": ("batch_size", "use --batch-size N for images per task, or --images N for images per iteration"),
    "img_size": ("image_size", "use --image-size PX"),
    "data": ("root", "use --root DIR"),
    "test_envs": ("target", "medic selects domains by name, not by number: use --target NAME"),
    "arch": ("backbone", "use --backbone NAME, or --backbone MODULE:FUNCTION for your own network"),
    "amp": ("precision", "use --precision bf16"),
    "metric": ("metrics", "use --metrics NAME"),
    "methods": ("span", "use --span method=erm,medic++"),
    "pretrained": ("weights", "use --weights FILE, or --weights imagenet-v1"),
    "rule": ("threshold", "use --threshold RULE"),
    "freeze": ("tune", "use --tune head"),
    "soup": ("output", "use `medic soup` to average the weights of finished runs"),
}
"""Options from other tools, with the equivalent setting and a hint for commands that accept this setting."""
_SAME = {
    "epochs": ("epoch", "num_epochs", "max_epochs", "n_epochs"),
    "num_workers": ("workers",),
    "gpu": ("cuda", "gpu_id"),
    "gpus": ("num_gpus",),
    "lr_scheduler": ("scheduler", "lr_schedule", "sched"),
    "batch": ("bs", "b"),
    "img_size": ("imgsz", "input_size", "resolution"),
    "data": ("data_path", "data_root", "dataset_root"),
    "test_envs": ("test_env", "test_domain", "test_domains"),
    "arch": ("model", "architecture", "net"),
    "amp": ("fp16", "half", "bf16", "mixed_precision"),
}
_SPELLED = {other: name for name, others in _SAME.items() for other in others}


def meaning(spelling: str) -> tuple[str, str] | None:
    """Return the setting equivalent to another tool's option, and a hint. None for an unknown option."""
    name = spelling.lstrip("-").replace("-", "_")
    return MEANINGS.get(_SPELLED.get(name, name))


GROUPS: Mapping[str, type] = {
    "run": RunSettings,
    "data": DataSettings,
    "model": ModelSettings,
    "tasks": TaskSettings,
    "objective": ObjectiveSettings,
    "optim": OptimSettings,
    "evaluation": EvaluationSettings,
    "execution": ExecutionSettings,
}
"""Groups of settings by name."""


class Settings(
    RunSettings,
    DataSettings,
    ModelSettings,
    TaskSettings,
    ObjectiveSettings,
    OptimSettings,
    EvaluationSettings,
    ExecutionSettings,
    total=False,
):
    """All settings of a run, in Python, in a file or on the command line. All of them are optional."""


def _declared(name: str, hint: Any, group: str) -> Setting:
    """Return the setting declared by a field of a group, `name: Annotated[type, setting(…)]`."""
    kind, setting = get_args(hint)
    return replace(cast(Setting, setting), name=name, hint=kind, group=group)


SETTINGS: Mapping[str, Setting] = {
    name: _declared(name, hint, group)
    for group, declared in GROUPS.items()
    for name, hint in get_type_hints(declared, include_extras=True).items()
}
"""All settings by name, ordered by group."""

DEFAULTS: Mapping[str, Any] = {
    name: setting.default for name, setting in SETTINGS.items() if setting.default is not None
}
"""Settings with a constant default: the lowest layer of every configuration."""


def setting_name(spelling: str) -> str:
    """Return a setting's canonical name, given a name that may contain hyphens or be an alias from another codebase."""
    name = spelling.replace("-", "_")
    return ALIASES.get(name, name)


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result. For a soup, they include the hashes of its runs."""
    soup = {"soup": settings["soup"]} if settings.get("soup") else {}
    return {**{name: settings.get(name) for name, setting in SETTINGS.items() if not setting.local}, **soup}


_CALLED: Mapping[Any, str] = {
    str: "a valid string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list[str]: "a list of names",
    list[int]: "a list of whole numbers",
    dict[str, int]: "a mapping from names to whole numbers",
    dict[str, list[str]]: "a mapping from names to lists",
    dict[str, Any]: "a mapping from names to values",
}
"""Descriptions of types in messages."""


def known_setting(name: str, where: str = "") -> str:
    """Return the name of a setting, or raise an error that suggests one. `where` describes where the name was found."""
    if name not in SETTINGS and (meant := meaning(name)):
        raise MedicError(f"unknown setting {name!r}{where and ' '}{where}: {meant[1]}")
    return check_choice("setting", name, SETTINGS, where)


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the names, types and limits of settings. Return them without None, and with paths as strings."""
    checked: dict[str, Any] = {}
    for spelling, value in settings.items():
        setting = SETTINGS[name := known_setting(setting_name(spelling))]
        if value is None:
            continue
        if name in checked:
            raise MedicError(f"{name} is set twice, once as {spelling!r}: remove one of them")
        value = _plain(value)
        if not any(_fits(value, kind) for kind in setting.kinds):
            wanted = " or ".join(_CALLED[kind] for kind in setting.kinds)
            several = isinstance(value, list | tuple) and not any(get_origin(kind) is list for kind in setting.kinds)
            hint = "; to combine several values, use `span` in a sweep" if several else ""
            raise MedicError(f"{name} must be {wanted}, got {value!r}{hint}")
        setting.check(value)
        checked[name] = value
    return checked


def _plain(value: Any) -> Any:
    """Copy a value, converting paths to strings, tuples to lists and mappings to dicts."""
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _fits(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    if kind == list[str] and not isinstance(value, list | tuple):  # a single name, or several separated by commas
        value = [value]
    if get_origin(kind) is list:
        return isinstance(value, list | tuple) and all(_fits(part, parts[0]) or type(part) is int for part in value)
    if get_origin(kind) is dict:
        return isinstance(value, Mapping) and all(_fits(part, parts[1]) for part in value.values())
    if isinstance(value, int) and abs(value) >= 2**63:  # too large for torch and numpy
        return False
    if isinstance(value, str) and _UNWRITABLE.search(value):
        return False
    taken = {float: (int, float)}.get(kind, kind)
    return kind is Any or (isinstance(value, taken) and (kind is bool or not isinstance(value, bool)))


_UNWRITABLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""NUL and lone surrogates, except U+DC80–U+DCFF, which stand for the non-UTF-8 bytes of file names."""
