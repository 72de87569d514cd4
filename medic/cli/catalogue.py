"""Cached names for listing, completion and spelling suggestions, so that none of these has to import torch.

Importing the modules that define methods and benchmarks takes seconds, because they import torch. `catalogue.json`
caches the names and descriptions. The cache is used only if its fingerprint matches these modules. After changing a
module, run `python -m medic.cli.catalogue` to update the file.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from medic.config.data import EACH, NONE, parse_names
from medic.errors import MedicError, check_choice, respelled
from medic.runs.layout import HASH, check_run
from medic.utils.files import check_root, check_weights_file, check_writable
from medic.utils.plugins import check_files, installed

FILE = Path(__file__).with_name("catalogue.json")
DEFINED = (
    "method*.py", "systems/*.py", "data/augment.py", "data/classes.py", "data/benchmarks/*.py", "models/__init__.py",
    "models/heads.py", "objectives/losses.py", "objectives/penalties/*.py", "openset/registry.py",
    "openset/thresholds.py", "results/paper_tables.py", "tasks/samplers.py", "training/averaging.py",
)  # fmt: skip
"""Glob patterns of the modules that define the listed names, relative to the package."""


def fingerprint() -> str:
    """Return the hash of the modules that define the listed names."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in DEFINED for path in FILE.parents[1].glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stored() -> Mapping[str, Any] | None:
    """Return the cached catalogue, or None if it is outdated or torch is already imported."""
    return None if "torch" in sys.modules else _read()


@cache
def _read() -> Mapping[str, Any] | None:
    try:
        contents: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
        return contents if contents["fingerprint"] == fingerprint() else None
    except (OSError, ValueError, KeyError):
        return None


def rows(kind: str, make: Callable[[], list[dict[str, Any]]], imports: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return all entries of one kind, including those from installed packages and imports. `make` builds them."""
    group = f"medic.{kind}"
    if imports or installed(group):
        from medic.config.imports import execute
        from medic.data import BENCHMARK_GROUP
        from medic.methods import METHOD_GROUP

        execute(imports)
        for registry in (METHOD_GROUP, BENCHMARK_GROUP):
            if registry.group == group:
                registry.load()
        return make()
    contents = stored()
    return make() if contents is None else contents[kind]


def load() -> Mapping[str, Any]:
    """Return the cached catalogue, or build a new one."""
    return stored() or make()


def make() -> dict[str, Any]:
    """Build the catalogue from the registries."""
    from medic.data import BENCHMARKS, list_datasets
    from medic.methods import list_methods
    from medic.results.paper_tables import list_tables

    return {
        "fingerprint": fingerprint(),
        "methods": list_methods(),
        "datasets": list_datasets(),
        "roots": {bench.name: bench.root_hint for bench in BENCHMARKS.values()},
        "tables": list_tables(),
        "values": {name: list(values) for name, values in _values()},
    }


def _values() -> Iterator[tuple[str, Sequence[str]]]:
    """Yield every setting whose values are defined by a registry, together with those values."""
    from medic.data import RECIPES
    from medic.methods import METHODS  # first, because it fills the other registries
    from medic.models import HEADS, LAYERS, OURS
    from medic.models.hub import V1
    from medic.objectives import OBJECTIVES, PENALTIES
    from medic.openset import RULES, SCORES
    from medic.tasks import SAMPLERS
    from medic.training import AVERAGES

    assert METHODS
    yield "backbone", (*OURS, "resnet18", "resnet50")
    yield "weights", (V1,)
    yield "augment", (*RECIPES,)
    yield "head", (*HEADS,)
    yield "layer", (*LAYERS, "none")
    yield "objective", (*OBJECTIVES,)
    yield "penalty", (*PENALTIES,)
    yield "sampling", (*SAMPLERS,)
    yield "averaging", (*AVERAGES, "none")
    yield "score", (*SCORES,)
    yield "threshold", (*RULES,)


GROUPS = ("medic.methods", "medic.datasets", "medic.scores")
"""Entry-point groups through which installed packages may define names."""
NOUNS = {"threshold": "threshold rule"} | {
    name: name for name in ("score", "head", "layer", "objective", "penalty", "sampling", "averaging")
}
"""Settings whose values are names, with the noun used in messages."""


def check_names(settings: Mapping[str, Any], dataset: str | None = None) -> None:
    """Raise an error for an unknown method, part, dataset or domain, before torch is imported.

    Names that an import or an installed package may define are not checked here; the run checks all settings again.
    `dataset` is the default dataset, or None if a table or another run determines it.
    """
    if "," in str(method := settings.get("method")):
        raise MedicError(
            f"expected one method, got {method!r}: use `medic sweep --span method={method}` to train several"
        )
    if settings.get("root") and "dataset" not in settings and dataset is not None:
        raise MedicError("--root requires --dataset; for your own images use --dataset folder")
    contents = stored()
    if contents is None or settings.get("imports"):
        return
    if isinstance(method, str):
        _check_name("method", method, [row["method"] for row in contents["methods"]])
    for name, noun in NOUNS.items():
        if isinstance(value := settings.get(name), str):
            _check_name(noun, value, contents["values"][name])
    domains = {row["dataset"]: list(row["domains"]) for row in contents["datasets"]}
    if not isinstance(dataset := settings.get("dataset", dataset), str):
        return
    if ":" in dataset:  # a user-defined function
        return
    _check_name("dataset", dataset, list(domains))
    own = domains.get(respelled(dataset, domains), [])
    for name in ("target", "sources") if own else ():
        for domain in parse_names(settings.get(name), own) or ():
            if domain not in (EACH, NONE):
                check_choice("domain", domain, own)


def check_paths(settings: Mapping[str, Any]) -> None:
    """Raise an error for missing input paths and an unwritable output, before torch is imported.

    The run itself checks the contents.
    """
    root, weights, extended, output = (settings.get(name) for name in ("root", "weights", "extend", "output"))
    names = stored()
    if root is not None and names is not None and not Path(root).is_file():  # a file is a table
        dataset = respelled(str(settings.get("dataset")), names["roots"])
        if dataset in names["roots"] or "dataset" not in settings:  # other datasets come from imported files
            check_root(Path(root), names["roots"].get(dataset, ": pass the folder that contains the dataset"))
    if weights is not None:
        check_weights_file(weights)
    if extended is not None and not HASH.fullmatch(extended):  # a hash, as in the settings of a run
        check_run(Path(extended))
    check_files(settings.get("imports") or ())
    if output is not None:
        check_writable("output", Path(output), folder=True)


def _check_name(noun: str, name: str, known: Sequence[str]) -> None:
    if respelled(name, known) not in known and not any(map(installed, GROUPS)):
        check_choice(noun, name, known)


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
