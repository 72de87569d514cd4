"""Sweeps: settings, lists of values to combine, and the runs that they describe.

Torch is imported when runs are planned: mistakes in a span do not wait for it.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import yaml

from medic.config.data import EACH
from medic.config.files import load_yaml
from medic.config.settings import SETTINGS, check_settings, setting_name
from medic.errors import MedicError, check_choice

if TYPE_CHECKING:
    from medic.config.config import Config
    from medic.runs.directory import RunDirectory

_FIRST = ("dataset", "root", "target", "sources")
"""Settings that are combined before others: the meaning of `each` depends on the first two."""
_PATHS = ("output", "root", "weights")
RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
"""Several whole numbers, written as 0..2."""
_DASHED = re.compile(r"(\d{1,18})-(\d{1,18})")
MOST = 100_000
"""Number of runs that a sweep may have."""


@dataclass(frozen=True)
class Job:
    """A run of a sweep: the settings of the user, the complete configuration, and the directory."""

    user_settings: Mapping[str, Any]
    config: "Config"
    directory: "RunDirectory"

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.directory.path.name

    def portable(self) -> dict[str, Any]:
        """Return the user's settings with absolute paths, which mean the same in every process."""
        paths = {name: Path(self.user_settings[name]) for name in _PATHS if name in self.user_settings}
        absolute = {name: str(path.absolute()) for name, path in paths.items() if name == "output" or path.exists()}
        return {**self.user_settings, **absolute}  # weights may also be a name, such as imagenet-v1


class Planner:
    """Turns given settings into runs. Each dataset is opened and hashed once, each network made and tried once."""

    def __init__(self) -> None:
        from medic.config.resolve import open_once

        self._open = open_once()
        self._fingerprints: dict[tuple[Any, ...], str] = {}
        self._networks: set[tuple[Any, ...]] = set()
        self._named: dict[Path, dict[str, Path]] = {}
        """Finished runs that were trained with `--name`, by output directory and hash."""

    def job(self, settings: Mapping[str, Any]) -> Job:
        """Return the run that these settings describe; None stands for a setting's default."""
        from medic.config.resolve import resolve
        from medic.runs.build import check_network
        from medic.runs.data import fingerprint, peek_images
        from medic.runs.directory import RunDirectory, named_runs, run_hash

        if settings.get("extend") is not None:
            raise MedicError("--extend continues one run: use it with `medic train`")
        plan = resolve(settings, self._open)
        if plan.config.execution.name is not None:
            raise MedicError(
                f"name {plan.config.execution.name!r}: runs of a sweep are named by their hash; leave out --name"
            )
        model, data, axes = plan.config.model, plan.config.data, tuple(plan.config.tasks.axes or ())
        network = (model.backbone, plan.weights, data.image_size, model.head, model.layer, plan.networks)
        if network not in self._networks:
            check_network(plan)
            self._networks.add(network)
        key = (id(plan.dataset), data.store_size, data.on_bad_image, data.validation, axes)
        if key not in self._fingerprints:
            self._fingerprints[key] = fingerprint(plan, peek_images(plan))
        run, output = run_hash(plan, self._fingerprints[key]), Path(plan.config.execution.output)
        if output not in self._named:
            self._named[output] = named_runs(output)
        return Job(plan.user_settings, plan.config, RunDirectory(self._named[output].get(run, output / run)))

    def jobs(self, settings: Iterable[Mapping[str, Any]]) -> list[Job]:
        """Return the runs that several settings describe, each once."""
        return list({job.name: job for job in map(self.job, settings)}.values())


@dataclass(frozen=True)
class Sweep:
    """Settings of every run, values to combine, and variants to combine them with.

    The runs are all combinations of one variant and one value of each setting in `span`. A value of None stands for the
    setting's default. Errors name the `file` that the sweep comes from.
    """

    settings: Mapping[str, Any]
    span: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ({},)
    file: Path | None = None

    @property
    def output(self) -> Path:
        """Directory that contains the directories of runs."""
        return Path(self.settings.get("output") or SETTINGS["output"].default)

    def changed(self, settings: Mapping[str, Any], span: Mapping[str, Sequence[Any]]) -> "Sweep":
        """Return the sweep with further settings and spans, which replace those of the same name."""
        spans = {**{name: values for name, values in self.span.items() if name not in settings}, **span}
        return dataclasses.replace(self, settings={**self.settings, **settings}, span=spans)

    def runs(self) -> list[dict[str, Any]]:
        """Return the settings of every run."""
        first = {name: self.span[name] for name in _FIRST if name in self.span}
        combinations = []
        for variant in self.variants or ({},):
            runs = [{**self.settings, **variant}]
            for name, values in {**first, **self.span}.items():
                if name not in variant:
                    each = [(run, expand(name, value, run)) for run in runs for value in values]
                    if (count := sum(len(expanded) for _, expanded in each)) > MOST:
                        raise MedicError(f"{name}: the sweep has {count:,} runs: give a shorter span, at most {MOST:,}")
                    runs = [{**run, name: one} for run, expanded in each for one in expanded]
            combinations += runs
        return [{name: value for name, value in run.items() if value is not None} for run in combinations]

    def jobs(self, planner: Planner) -> list[Job]:
        """Return the runs; settings that describe the same run give one."""
        try:
            return planner.jobs({**run, "output": str(self.output)} for run in self.runs())
        except MedicError as error:
            if self.file is None:
                raise
            raise MedicError(f"sweep {self.file}: {error}") from error


def expand(name: str, value: Any, run: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values that a value of a span stands for: 0..2 for numbers, `each` for every domain of the dataset."""
    if value == EACH and name in ("target", "sources"):
        from medic.config.imports import execute
        from medic.data import benchmark

        execute(run.get("imports") or ())  # it may define the dataset
        bench, root = benchmark(run.get("dataset") or SETTINGS["dataset"].default), run.get("root")
        domains = bench.domains or bench.open(None if root is None else Path(root), 0).domains
        return [[domain] if name == "sources" else domain for domain in domains]
    if isinstance(value, str) and (ends := RANGE.fullmatch(value)):
        first, last = int(ends[1]), int(ends[2])
        if first > last:
            raise MedicError(f"{name} {value!r} counts from the larger number: write {last}..{first}")
        return range(first, last + 1)
    return [value]


def parse_span(written: Sequence[str]) -> dict[str, list[Any]]:
    """Parse `method=erm,medic++` and `seed=0..4`; values that contain commas are separated by `|`: `steps=3,3,3|9`."""
    span = {}
    for part in written:
        name, _, values = part.partition("=")
        each = values.split("|" if "|" in values else ",")
        if not all(each):
            raise MedicError(f"--span {part!r}: give a setting and its values, as in method=erm,medic++ or seed=0..2")
        name = check_choice("setting of --span", setting_name(name), [name for name in SETTINGS if name != "output"])
        mapping = any(get_origin(kind) is dict for kind in SETTINGS[name].kinds)
        joined = None if mapping else re.search(r",([\w-]+)=", part)
        if joined and setting_name(joined[1]) in SETTINGS:
            apart = f"{part[: joined.start()]} {part[joined.start() + 1 :]}"
            raise MedicError(f"--span {part!r}: separate settings by a space, as in --span {apart}")
        try:
            span[name] = [load_yaml(value) for value in each]
        except yaml.YAMLError as error:
            raise MedicError(f"--span {part!r}: cannot read a value: check its brackets and quotes") from error
        for value in span[name]:
            _check_value(name, value)
    return span


def _check_value(name: str, value: Any) -> None:
    """Refuse a value of a span that no run could have."""
    if isinstance(value, str) and RANGE.fullmatch(value):
        return
    dashed = _DASHED.fullmatch(str(value)) if {int, float} & set(SETTINGS[name].kinds) else None
    if dashed:
        raise MedicError(f"--span {name}={value}: write a range as {name}={dashed[1]}..{dashed[2]}")
    check_settings({name: value})


def titles(jobs: Sequence[Job]) -> dict[str, str]:
    """Return a title of every run for people: method, domains, seed, and the settings in which runs differ."""
    others = [name for name in SETTINGS if name not in ("method", "target", "seed", "output")]
    differing = [name for name in others if len({repr(job.user_settings.get(name)) for job in jobs}) > 1]
    return {job.name: _title(job, differing) for job in jobs}


def _title(job: Job, differing: Sequence[str]) -> str:
    data, run = job.config.data, job.config.run
    single = len(data.target) <= 1
    domains = f"→ {', '.join(data.target) or 'none'}" if single else f"from {', '.join(data.sources)}"
    values = {name: job.user_settings.get(name) for name in differing if single or name != "sources"}
    others = [f"{name} {_text(value)}" for name, value in values.items() if value is not None]
    return ", ".join([f"{run.method} {domains}", f"seed {run.seed}", *others])


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(part)}" for name, part in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
