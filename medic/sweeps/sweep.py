"""A sweep: many runs, spanned by lists of settings, and which of them are there already."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medic.data import benchmark
from medic.errors import MedicError, check_choice
from medic.runs.config import EACH, Loader, RunConfig, setting_name
from medic.runs.directory import RunDirectory, run_name
from medic.runs.plans import open_once
from medic.runs.resolve import Resolved, resolve
from medic.sweeps.files import COUNTED, SETTINGS, At, located, read_parts

_FIRST = ("dataset", "root", "target", "sources")
"""Settings that are chosen before others: what `each` stands for depends on the first two."""


@dataclass(frozen=True)
class Sweep:
    """What is asked for: settings of every run, lists of values to combine, and variants to combine them with.

    The runs are all combinations of one variant and one value of each spanned setting, over the fixed `settings`. A
    value may be `At` a place in a file; None is the setting's default.
    """

    settings: Mapping[str, Any]
    span: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ({},)

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        """Read a sweep from a YAML file."""
        return cls(*read_parts(path))

    @property
    def output(self) -> Path:
        """The directory that the directories of runs are made in."""
        return Path(_bare(self.settings.get("output")) or RunConfig.output)

    def changed(self, settings: Mapping[str, Any], span: Mapping[str, Sequence[Any]]) -> "Sweep":
        """A sweep with further settings and spans on top, as a command line gives them."""
        spans = {**{name: values for name, values in self.span.items() if name not in settings}, **span}
        return Sweep({**self.settings, **settings}, spans, self.variants)

    def configs(self, output: Path) -> list[RunConfig]:
        """The configuration of every run, which writes into `output`; none twice."""
        found = [_config(given, output) for given in self._combinations()]
        return list({repr(config): config for config in found}.values())

    def jobs(self, planner: "Planner") -> list["Job"]:
        """The runs; two that come to the same run are one."""
        found = {}
        for given in self._combinations():
            try:
                job = planner.job(_config(given, self.output))
            except MedicError as error:
                raise located(error, given) from error
            found[job.name] = job
        return list(found.values())

    def _combinations(self) -> Iterator[dict[str, Any]]:
        """The settings that are given for every run."""
        first = {name: self.span[name] for name in _FIRST if name in self.span}
        for variant in self.variants or ({},):
            found = [{**self.settings, **variant}]
            for name, values in {**first, **self.span}.items():
                if name not in variant:
                    found = [
                        {**given, name: one}
                        for given in found
                        for value in values
                        for one in _expanded(name, value, given)
                    ]
            yield from found


@dataclass(frozen=True)
class Job:
    """One run of a sweep: what is asked for, the same with all defaults, and the directory it belongs in."""

    config: RunConfig
    complete: RunConfig
    directory: RunDirectory

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.directory.path.name


def titles(jobs: Sequence[Job]) -> dict[str, str]:
    """What each of some runs is, for people: method, target or sources, seed, and whatever else was asked otherwise."""
    others = [name for name in SETTINGS if name not in ("method", "target", "seed", "output")]
    differing = [name for name in others if len({repr(getattr(job.config, name)) for job in jobs}) > 1]
    return {job.name: _title(job, differing) for job in jobs}


class Planner:
    """Resolves configurations, and looks at every dataset but once."""

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self._say = say
        self._open = open_once()
        self._hashes: dict[tuple[Any, ...], str] = {}

    def job(self, config: RunConfig) -> Job:
        """The run that a configuration asks for."""
        resolved = resolve(config, self._open)
        name = run_name(resolved.config, self._images(resolved), resolved.model.weights)
        return Job(config, resolved.config, RunDirectory(Path(config.output) / name))

    def jobs(self, configs: Sequence[RunConfig]) -> list[Job]:
        """The runs that configurations ask for; two that come to the same run are one."""
        found = {job.name: job for job in map(self.job, configs)}
        return list(found.values())

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
        name, _, values = part.partition("=")
        each = values.split("|" if "|" in values else ",")
        if not all(each):
            raise MedicError(f"span {part!r}: give a setting and its values, as in method=erm,medic++ or seed=0..2")
        name = check_choice("setting to span", setting_name(name), [name for name in SETTINGS if name != "output"])
        try:
            found[name] = [yaml.load(value, Loader) for value in each]  # a SafeLoader
        except yaml.YAMLError as error:
            raise MedicError(f"span {part!r}: a value cannot be read, such as one with a bracket alone") from error
    return found


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, At) else value


def _config(given: Mapping[str, Any], output: Path) -> RunConfig:
    values = {name: _bare(value) for name, value in given.items()}
    return RunConfig(**{**{name: value for name, value in values.items() if value is not None}, "output": str(output)})


def _expanded(name: str, value: Any, given: Mapping[str, Any]) -> list[Any]:
    """The values that one of a span stands for, where the one stands."""
    try:
        several = _meant(name, _bare(value), {name: _bare(one) for name, one in given.items()})
    except MedicError as error:
        raise located(error, {**given, name: value}) from error
    return [At(one, value.place) for one in several] if isinstance(value, At) else several


def _meant(name: str, value: Any, given: Mapping[str, Any]) -> list[Any]:
    """A value itself, the numbers that it counts, or every domain of the dataset that is given."""
    if value == EACH and name in ("target", "sources"):
        bench = benchmark(given.get("dataset") or RunConfig.dataset)
        root = given.get("root")
        domains = bench.domains or bench.open(None if root is None else Path(root)).domains
        return [[domain] if name == "sources" else domain for domain in domains]
    if isinstance(value, str) and (ends := re.fullmatch(r"(\d+)\.\.(\d+)", value)):
        numbers = list(range(int(ends[1]), int(ends[2]) + 1))
        if not numbers:
            raise MedicError(f"{name} {value!r} counts from the larger number: write {ends[2]}..{ends[1]}")
        return numbers
    if isinstance(value, str) and name in COUNTED:
        raise MedicError(f"{name} is {value!r}: give whole numbers, one by one or as 0..2, which are 0, 1 and 2")
    return [value]


def _title(job: Job, differing: Sequence[str]) -> str:
    complete = job.complete
    alone = len(complete.target or ()) == 1  # complete settings have it as a list
    domains = f"→ {complete.target_names}" if alone else f"from {', '.join(complete.sources or ())}"
    found = [f"{complete.method} {domains}", f"seed {complete.seed}"]
    asked = {name: getattr(job.config, name) for name in differing if alone or name != "sources"}
    return ", ".join([*found, *(f"{name} {_shown(value)}" for name, value in asked.items() if value is not None)])


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_shown(part)}" for name, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
