"""The names that the command line lists and completes, in a file, so that a list or a typo does not wait for torch.

Methods and benchmarks are defined beside code that imports torch, which takes seconds. `catalogue.json` holds what is
listed of them. It is used only if the modules that define the names are those it was made from. After a change to
them, `python -m medic.cli.catalogue` writes it anew.
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
"""The modules that define what is listed, by patterns below the package."""


def fingerprint() -> str:
    """Return the hash of the modules that define what is listed."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in DEFINED for path in FILE.parents[1].glob(pattern)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stored() -> Mapping[str, Any] | None:
    """Return the file, or None if it is outdated, or torch is imported, so that nobody waits for the registries."""
    return None if "torch" in sys.modules else _read()


@cache
def _read() -> Mapping[str, Any] | None:
    try:
        contents: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
        return contents if contents["fingerprint"] == fingerprint() else None
    except (OSError, ValueError, KeyError):
        return None


def rows(kind: str, make: Callable[[], list[dict[str, Any]]], imports: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the entries of one kind, with those of installed packages and imports: from the file, or new ones."""
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
    """Return the catalogue: the file, or what it would hold."""
    return stored() or make()


def make() -> dict[str, Any]:
    """Make the catalogue from the registries."""
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
    """Yield the values of settings that a registry defines, for completion."""
    from medic.data import RECIPES
    from medic.methods import METHODS  # first, because systems add to the registries
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
"""The entry points of installed packages, which may define any name."""
NOUNS = {"threshold": "threshold rule"} | {
    name: name for name in ("score", "head", "layer", "objective", "penalty", "sampling", "averaging")
}
"""The settings whose values have names, and what messages call them."""


def check_names(settings: Mapping[str, Any], dataset: str | None = None) -> None:
    """Refuse an unknown name of a part, dataset or domain before torch is imported; a run checks all settings again.

    `dataset` is the one to use if the settings name none; None if a table or another run supplies it. Names that an
    imported file or an installed package may define are left to the run.
    """
    if "," in str(method := settings.get("method")):
        raise MedicError(f"method {method!r}: a run has one; `medic sweep --span method={method}` trains several")
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
    if ":" in dataset:  # a function of the user's
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
    if root is not None and names is not None and not Path(root).is_file():  # a table
        dataset = respelled(str(settings.get("dataset")), names["roots"])
        if dataset in names["roots"] or "dataset" not in settings:  # otherwise that of an imported file
            check_root(Path(root), names["roots"].get(dataset, ": give the folder that the dataset is in"))
    if weights is not None:
        check_weights_file(weights)
    if extended is not None and not HASH.fullmatch(extended):  # as the settings of a run have it
        check_run(Path(extended))
    check_files(settings.get("imports") or ())
    if output is not None:
        check_writable("output", Path(output), folder=True)


def _check_name(noun: str, name: str, known: Sequence[str]) -> None:
    if respelled(name, known) not in known and not any(map(installed, GROUPS)):
        check_choice(noun, name, known)


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
