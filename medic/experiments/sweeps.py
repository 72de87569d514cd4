"""A sweep: many runs, spanned by lists of settings, and which of them are there already."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medic.data import Benchmark, Opened, benchmark
from medic.errors import MedicError, check_choice
from medic.experiments.config import Loader, RunConfig, setting_name
from medic.experiments.directory import RunDirectory, run_name
from medic.experiments.resolve import Resolved, resolve

EACH = "each"
"""In place of values: every domain of the dataset, one after the other."""
_SETTINGS = tuple(field.name for field in dataclasses.fields(RunConfig))
_PARTS = ("span", "variants")


@dataclass(frozen=True)
class Sweep:
    """What is asked for: settings of every run, lists of values to combine, and variants to combine them with.

    The runs are all combinations of one variant and one value of each spanned setting, over the fixed `settings`.
    """

    settings: Mapping[str, Any]
    span: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ({},)
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Where in its file each value stands."""

    def configs(self, output: Path) -> list[RunConfig]:
        """The configuration of every run, which writes into `output`; none twice."""
        found = []
        for variant in self.variants or ({},):
            fixed = {**self.settings, **variant}
            span = {name: _values(name, values, fixed) for name, values in self.span.items() if name not in variant}
            chosen = (dict(zip(span, values, strict=True)) for values in itertools.product(*span.values()))
            found += [RunConfig(**{**fixed, **values, "output": str(output)}) for values in chosen]
        return list({repr(config): config for config in found}.values())

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """Read a sweep from a YAML file: settings as `medic train` has them, and beside them `span` and `variants`."""
        tree = _compose(path)
        found: dict[str, Any] = {}
        for key, node in _entries(path, tree):
            name = key.value if key.value in _PARTS else _checked(path, key, (*_PARTS, *_SETTINGS))
            found[name] = _part(path, name, node)
        settings = {name: value for name, value in found.items() if name not in _PARTS and value is not None}
        return cls(settings, found.get("span") or {}, found.get("variants") or ({},), dict(_places(path, tree)))

    def changed(self, settings: Mapping[str, Any], span: Mapping[str, Sequence[Any]]) -> "Sweep":
        """A sweep with further settings and spans on top, as a command line gives them."""
        spans = {**{name: values for name, values in self.span.items() if name not in settings}, **span}
        return Sweep({**self.settings, **settings}, spans, self.variants, self.places)

    def located(self, error: MedicError) -> MedicError:
        """An error of one of the runs, with the line of the value that it names, if that stands in a file."""
        named = re.search(r"'([^']+)'|is (\S+):", str(error))
        value = str(named[1] or named[2]) if named else ""
        return MedicError(f"{self.places[value]}: {error}") if value in self.places else error


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its complete settings and the directory it belongs in."""

    config: RunConfig
    directory: RunDirectory

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory.path.name

    @property
    def title(self) -> str:
        """What it is, for people."""
        return f"{self.config.method} → {self.config.target_names}, seed {self.config.seed}"


class Planner:
    """Resolves configurations, and looks at every dataset but once."""

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self._say = say
        self._opened: dict[tuple[Any, ...], Opened] = {}
        self._hashes: dict[tuple[Any, ...], str] = {}

    def job(self, config: RunConfig) -> Job:
        """The run that a configuration asks for."""
        resolved = resolve(config, self._open)
        name = run_name(resolved.config, self._images(resolved), resolved.model.weights)
        return Job(config, RunDirectory(Path(config.output) / name))

    def jobs(self, configs: Sequence[RunConfig]) -> list[Job]:
        """The runs that configurations ask for; two that come to the same run are one."""
        found = {job.name: job for job in map(self.job, configs)}
        return list(found.values())

    def _open(self, bench: Benchmark, root: Path | None, seed: int) -> Opened:
        key = (bench.name, root, seed if bench.seeded else None)
        if key not in self._opened:
            self._opened[key] = bench.open(bench, root, seed)
        return self._opened[key]

    def _images(self, resolved: Resolved) -> str:
        """The hash of the images of a run."""
        config, axes = resolved.config, tuple(resolved.config.axes or ())
        key = (id(resolved.data.opened), config.store_size, config.on_bad_image, config.validation, axes)
        if key not in self._hashes:
            dataset = resolved.data.look(self._say)
            self._hashes[key] = resolved.data.fingerprint(dataset, axes)
        return self._hashes[key]


def parse_span(written: Sequence[str]) -> dict[str, list[Any]]:
    """`method=erm,medic++` or, of values with a comma, `steps=3,3,3|9`; `seed=0..4` counts."""
    found = {}
    for part in written:
        name, equals, values = part.partition("=")
        if not equals or not values:
            raise MedicError(f"span {part!r}: give a setting and its values, as in method=erm,medic++ or seed=0..2")
        name = check_choice("setting to span", setting_name(name), _SETTINGS)
        separator = "|" if "|" in values else ","
        found[name] = [yaml.load(value, Loader) for value in values.split(separator)]
    return found


def _values(name: str, values: Any, fixed: Mapping[str, Any]) -> list[Any]:
    """The values of a spanned setting: as they are, counted out, or every domain."""
    given = list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    found: list[Any] = []
    for value in given:
        if value == EACH and name in ("target", "sources"):
            bench = benchmark(fixed.get("dataset", RunConfig.dataset))
            domains = (
                bench.domains or bench.open(bench, Path(fixed["root"]), 0).domains if "root" in fixed else bench.domains
            )
            if not domains:
                raise MedicError(f"{name} 'each': dataset {bench.name!r} needs a root that its domains are found in")
            found += [[domain] if name == "sources" else domain for domain in domains]
        elif isinstance(value, str) and (ends := re.fullmatch(r"(\d+)\.\.(\d+)", value)):
            found += range(int(ends[1]), int(ends[2]) + 1)
        else:
            found.append(value)
    return found


def _compose(path: Path) -> yaml.MappingNode:
    try:
        tree = yaml.compose(path.read_text(), Loader=Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise MedicError(f"sweep {path} cannot be read: {reason}") from error
    if not isinstance(tree, yaml.MappingNode):
        raise MedicError(f"sweep {path} does not hold settings, a line `name: value` for each")
    return tree


def _entries(path: Path, node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        raise MedicError(f"{_place(path, node)}: expected settings, a line `name: value` for each")
    yield from node.value


def _places(path: Path, node: yaml.Node) -> Iterator[tuple[str, str]]:
    """Every plain value below a node, and where it stands."""
    if isinstance(node, yaml.ScalarNode):
        yield str(node.value), _place(path, node)
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        for child in part if isinstance(part, tuple) else (part,):
            yield from _places(path, child)


def _place(path: Path, node: yaml.Node) -> str:
    return f"sweep {path}, line {node.start_mark.line + 1}"


def _checked(path: Path, key: yaml.ScalarNode, choices: Sequence[str]) -> str:
    """The name of a setting, in our spelling."""
    return check_choice(f"setting in {_place(path, key)}:", setting_name(str(key.value)), choices)


def _part(path: Path, name: str, node: yaml.Node) -> Any:
    """What stands behind a key of a sweep file."""
    if name == "variants":
        if not isinstance(node, yaml.SequenceNode):
            raise MedicError(f"{_place(path, node)}: variants are a list, each a few settings")
        return [_settings(path, part) for part in node.value]
    return _settings(path, node) if name == "span" else _plain(node)


def _settings(path: Path, node: yaml.Node) -> dict[str, Any]:
    return {_checked(path, key, _SETTINGS): _plain(value) for key, value in _entries(path, node)}


def _plain(node: yaml.Node) -> Any:
    """The value of a node."""
    loader = Loader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()
