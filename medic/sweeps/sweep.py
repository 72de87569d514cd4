"""Sweeps: settings, lists of values to combine, and the resulting runs.

Torch is imported only when runs are planned, so that mistakes in a span are reported quickly.
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
"""Settings that are combined before the others, because the meaning of `each` depends on the first two."""
_PATHS = ("output", "root", "weights")
RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
"""Range of whole numbers, written as 0..2."""
_DASHED = re.compile(r"(\d{1,18})-(\d{1,18})")
MOST = 100_000
"""Maximum number of runs in a sweep."""


@dataclass(frozen=True)
class Job:
    """A run of a sweep: the user's settings, the complete configuration, and the run directory."""

    user_settings: Mapping[str, Any]
    config: "Config"
    directory: "RunDirectory"

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.directory.path.name

    def portable(self) -> dict[str, Any]:
        """Return the user's settings with absolute paths, which are valid in every process."""
        paths = {name: Path(self.user_settings[name]) for name in _PATHS if name in self.user_settings}
        absolute = {name: str(path.absolute()) for name, path in paths.items() if name == "output" or path.exists()}
        return {**self.user_settings, **absolute}  # weights may also be a name, such as imagenet-v1


def check_local(jobs: Iterable[Job]) -> None:
    """Raise an error if a run needs code that exists in this process only, so no other process can execute the run."""
    from medic.config.imports import local_entries  # deferred, because these import torch
    from medic.config.sources import is_source

    for job in jobs:
        for kind, entry in local_entries(job.config.settings):
            if not is_source(entry):
                way = "move it to a file and pass imports=, or use executor='here'"
                raise MedicError(f"{kind} {entry!r} exists only in this process: {way}")


class Planner:
    """Converter from settings to runs, which opens each dataset and checks each network only once."""

    def __init__(self) -> None:
        from medic.config.resolve import open_once

        self._open = open_once()
        self._fingerprints: dict[tuple[Any, ...], str] = {}
        self._networks: set[tuple[Any, ...]] = set()
        self._named: dict[Path, dict[str, Path]] = {}
        """Finished runs named with `--name`, keyed by output directory and hash."""

    def job(self, settings: Mapping[str, Any]) -> Job:
        """Return the run described by `settings`, in which None means a setting's default."""
        from medic.config.resolve import resolve
        from medic.runs.build import check_network
        from medic.runs.data import fingerprint, peek_images
        from medic.runs.directory import RunDirectory, named_runs, run_hash

        if settings.get("extend") is not None:
            raise MedicError("--extend continues a single run: use it with `medic train`")
        plan = resolve(settings, self._open)
        if plan.config.execution.name is not None:
            raise MedicError(
                f"name {plan.config.execution.name!r}: the runs of a sweep are named after their hashes; omit --name"
            )
        model, data, axes = plan.config.model, plan.config.data, tuple(plan.config.tasks.axes or ())
        recompute = plan.config.execution.recompute
        network = (model, plan.weights, data.image_size, plan.networks, plan.batch_size, recompute)
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
        """Return the distinct runs described by several sets of settings."""
        return list({job.name: job for job in map(self.job, settings)}.values())


@dataclass(frozen=True)
class Sweep:
    """Settings shared by all runs, values to combine, and variants to combine them with.

    The runs are all combinations of one variant and one value for each setting in `span`. None means the setting's
    default. Errors name `file`, the file that defines the sweep.
    """

    settings: Mapping[str, Any]
    span: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ({},)
    file: Path | None = None

    @property
    def output(self) -> Path:
        """The output directory, which contains the run directories."""
        return Path(self.settings.get("output") or SETTINGS["output"].default)

    def changed(self, settings: Mapping[str, Any], span: Mapping[str, Sequence[Any]]) -> "Sweep":
        """Return the sweep with additional settings and spans, which override existing ones."""
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
                        raise MedicError(f"{name}: the sweep has {count:,} runs (at most {MOST:,}): use a shorter span")
                    runs = [{**run, name: one} for run, expanded in each for one in expanded]
            combinations += runs
        return [{name: value for name, value in run.items() if value is not None} for run in combinations]

    def jobs(self, planner: Planner) -> list[Job]:
        """Return the distinct runs."""
        try:
            return planner.jobs({**run, "output": str(self.output)} for run in self.runs())
        except MedicError as error:
            if self.file is None:
                raise
            raise MedicError(f"sweep {self.file}: {error}") from error


def expand(name: str, value: Any, run: Mapping[str, Any]) -> Sequence[Any]:
    """Expand a span value: `0..2` to whole numbers, and `each` to all domains in the dataset."""
    if value == EACH and name in ("target", "sources"):
        from medic.config.imports import execute
        from medic.data import benchmark

        execute(run.get("imports") or ())  # the imports may define the dataset
        bench, root = benchmark(run.get("dataset") or SETTINGS["dataset"].default), run.get("root")
        domains = bench.domains or bench.open(None if root is None else Path(root), 0).domains
        return [[domain] if name == "sources" else domain for domain in domains]
    if isinstance(value, str) and (ends := RANGE.fullmatch(value)):
        first, last = int(ends[1]), int(ends[2])
        if first > last:
            raise MedicError(f"{name} {value!r} is a descending range: write {last}..{first}")
        return range(first, last + 1)
    return [value]


def parse_span(written: Sequence[str]) -> dict[str, list[Any]]:
    """Parse spans such as `method=erm,medic++` and `seed=0..4`.

    Use `|` to separate values that contain commas: `steps=3,3,3|9`.
    """
    span = {}
    for part in written:
        name, _, values = part.partition("=")
        each = values.split("|" if "|" in values else ",")
        if not all(each):
            raise MedicError(
                f"--span {part!r}: expected a setting and its values, as in method=erm,medic++ or seed=0..2"
            )
        name = check_choice("setting of --span", setting_name(name), [name for name in SETTINGS if name != "output"])
        mapping = any(get_origin(kind) is dict for kind in SETTINGS[name].kinds)
        joined = None if mapping else re.search(r",([\w-]+)=", part)
        if joined and setting_name(joined[1]) in SETTINGS:
            apart = f"{part[: joined.start()]} {part[joined.start() + 1 :]}"
            raise MedicError(f"--span {part!r}: separate settings with a space, as in --span {apart}")
        try:
            span[name] = [load_yaml(value) for value in each]
        except yaml.YAMLError as error:
            raise MedicError(f"--span {part!r}: cannot parse a value: check its brackets and quotes") from error
        for value in span[name]:
            _check_value(name, value)
    return span


def _check_value(name: str, value: Any) -> None:
    """Raise an error for a span value that is invalid for its setting."""
    if isinstance(value, str) and RANGE.fullmatch(value):
        return
    dashed = _DASHED.fullmatch(str(value)) if {int, float} & set(SETTINGS[name].kinds) else None
    if dashed:
        raise MedicError(f"--span {name}={value}: write a range as {name}={dashed[1]}..{dashed[2]}")
    check_settings({name: value})


def titles(jobs: Sequence[Job]) -> dict[str, str]:
    """Return a readable title for each run: method, domains, seed, and the settings that differ between runs."""
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
