"""From what was asked of the data to what a run will see of it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from medic.data import (
    Benchmark,
    ClassSplit,
    Dataset,
    DatasetSummary,
    Generated,
    ImageList,
    LazyDataset,
    Problem,
    Augmentation,
    Storage,
    choose_domains,
    listed_split,
    make_parts,
    make_problem,
    make_augmentation,
    named_split,
)
from medic.data.holdout import Rule
from medic.data.noise import mislabelled
from medic.data.store import OnBad, Where
from medic.errors import MedicError, check_choice
from medic.runs.config import EACH, RunConfig
from medic.models import fixed_size, native_size
from medic.training import derive, generator


@dataclass(frozen=True)
class DataPlan:
    """What is learnt from, and how its images are varied."""

    benchmark: Benchmark
    opened: LazyDataset
    storage: Storage
    size: int
    """The side in pixels of what the model sees; the storage may keep larger images."""
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    classes: ClassSplit
    validation: Rule
    holdout: float
    trial_seed: int
    on_empty: Literal["error", "warn"]
    recipe: Augmentation
    label_noise: float = 0.0

    def load(self, report: Callable[[str], None]) -> Dataset:
        """Read the images."""
        return self.opened.load(self.storage)

    def look(self, report: Callable[[str], None]) -> DatasetSummary:
        """Summarise the images without decoding files."""
        return self.opened.look(self.storage)

    def split(self, dataset: Dataset) -> Problem:
        """Divide them between training, validation and evaluation, the same way every time."""
        seed = self.trial_seed if self.validation == "domainbed" else derive(self.trial_seed, "split")
        parts = make_parts(dataset, self.validation, self.holdout, seed)
        problem = make_problem(dataset, self.sources, self.targets, self.classes, parts, self.on_empty)
        if self.validation == "official":
            listed = set(problem.validation.domain.tolist())
            for source in problem.sources:
                if source not in listed:
                    raise MedicError(
                        f"validation 'official': no list or folder holds out images of {dataset.domains[source]!r}"
                    )
        if self.label_noise:
            return self._mislabelled(problem, dataset)
        return problem

    def _mislabelled(self, problem: Problem, dataset: Dataset) -> Problem:
        """The problem with some labels of the sources made wrong; nobody has clean ones to validate on either."""
        known = {
            source: [problem.known.index(name) for name in self.classes.of_source(dataset.domains[source])]
            for source in problem.sources
        }
        draws = generator(self.trial_seed, "label noise")
        train, validation = (
            mislabelled(samples, self.label_noise, known, draws) for samples in (problem.train, problem.validation)
        )
        return replace(problem, train=train, validation=validation)

    def fingerprint(self, dataset: Dataset | DatasetSummary, axes: Iterable[str]) -> str:
        """The hash of the images and of whatever else of the data a run depends on."""
        used = [dataset.hash]
        used += [f"{axis}={dataset.attributes[axis].tolist()}" for axis in sorted(axes)]
        used += [str(dataset.parts)] if self.validation == "official" else []
        return dataset.hash if len(used) == 1 else hashlib.sha256("\0".join(used).encode()).hexdigest()

    @property
    def partial(self) -> dict[str, list[str]] | None:
        """The known classes of every source that lacks some, as a configuration has them."""
        return {domain: list(names) for domain, names in self.classes.partial.items()} or None


Open = Callable[[Benchmark, Path | None, int], LazyDataset]
"""Finds the images of a benchmark below a root, for a seed."""


def open_benchmark(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
    """Look for the images of a benchmark."""
    return bench.open(root, seed)


def open_once() -> Open:
    """As `open_benchmark`, but looks at every dataset but once."""
    found: dict[tuple[str, Path | None, int | None], LazyDataset] = {}

    def find(bench: Benchmark, root: Path | None, seed: int) -> LazyDataset:
        key = (bench.name, root, seed if bench.seeded else None)
        if key not in found:
            found[key] = open_benchmark(bench, root, seed)
        return found[key]

    return find


def plan_data(
    config: RunConfig, bench: Benchmark, backbone: str, device: torch.device, find: Open = open_benchmark
) -> DataPlan:
    """What a configuration says of the data, checked against what there is."""
    opened = find(bench, None if config.root is None else Path(config.root), config.seed)
    domains = opened.domains
    given = {"target": _listed(config.target, domains), "sources": _listed(config.sources, domains)}
    for name, values in given.items():
        if EACH in (values or ()) and EACH not in domains:
            raise MedicError(f"{name} {EACH!r} means a run for every domain: use `medic sweep --span {name}={EACH}`")
    sources, targets = choose_domains(domains, given["target"], given["sources"])
    rule = cast(Rule, check_choice("validation", config.validation, get_args(Rule)))
    if rule == "official" and (config.holdout or config.trial_seed) is not None:
        raise MedicError("holdout and trial_seed have no effect on validation 'official': its lists say all")
    on_bad = cast(OnBad, check_choice("on_bad_image", config.on_bad_image, get_args(OnBad)))
    size = _image_size(config, bench, backbone)
    if config.store_size is not None and config.store_size < size:
        raise MedicError(f"store_size {config.store_size} is smaller than the images, {size}: there is nothing to crop")
    made = bench.image_size if isinstance(opened, Generated) else None  # by a program, at one size
    storage = Storage(
        config.store_size or made or size,
        cast(Where, check_choice("store", config.store, get_args(Where))),
        device,
        on_bad,
    )
    return DataPlan(
        bench,
        opened,
        storage,
        size,
        sources,
        targets,
        _plan_classes(config, bench, opened, sources),
        rule,
        config.holdout or 0.2,
        config.seed if config.trial_seed is None else config.trial_seed,
        "warn" if on_bad == "skip" else "error",
        _plan_recipe(config, bench),
        config.label_noise or 0.0,
    )


def _image_size(config: RunConfig, bench: Benchmark, backbone: str) -> int:
    """The side in pixels of what the model sees: what was asked for, or what the backbone or the benchmark has."""
    only = fixed_size(backbone)
    if only is not None and config.image_size not in (None, only):
        raise MedicError(f"backbone {backbone!r} takes images of {only} px alone: leave out --image-size")
    return config.image_size or only or bench.image_size or native_size(backbone)


def _plan_recipe(config: RunConfig, bench: Benchmark) -> Augmentation:
    if config.freeze is not None:
        if config.augment not in (None, "none"):
            raise MedicError(f"augment {config.augment!r} has no effect on the features of a frozen backbone")
        return make_augmentation("none")
    recipe = make_augmentation(config.augment or bench.augment)
    if bench.channels != 3 and (recipe.jitter or recipe.grey):
        raise MedicError(
            f"augmentation changes colours, and {bench.name} has {bench.channels} channels: leave out jitter, grey"
        )
    return recipe


def _plan_classes(config: RunConfig, bench: Benchmark, opened: LazyDataset, sources: tuple[str, ...]) -> ClassSplit:
    """The known and unknown classes: by the name of a split, by lists, or as the benchmark has them."""
    classes = opened.classes
    known, unknown = _listed(config.known, classes), _listed(config.unknown, classes)
    partial = _parse_partial(config.partial, sources, classes)
    listed = known is not None or unknown is not None
    if config.split is not None and listed:
        raise MedicError(f"split {config.split!r} says which classes are known: give it, or lists of classes")
    if not listed and (name := config.split or bench.split) is not None:
        split = named_split(name, bench.name, classes, sources)
        if split.partial and config.partial is not None:
            raise MedicError(f"split {name!r} says which classes each source has: leave out partial")
        if config.partial is None:
            return split
        known, unknown = list(split.known), list(split.unknown)
    if known is None:
        known = [name for name in classes if name not in (unknown or ())]
    if _is_auto(config.partial):
        partial = _found_partial(opened, known, sources)
    return listed_split(classes, known, unknown, partial)


def _is_auto(partial: object) -> bool:
    return partial in ("auto", ["auto"])


def _found_partial(opened: LazyDataset, known: Sequence[str], sources: Sequence[str]) -> dict[str, list[str]]:
    """The known classes of every source that lacks some, as its files have them."""
    if not isinstance(opened, ImageList):
        return {}
    counts = opened.counts()
    found = {source: [name for name in known if counts[source][name]] for source in sources}
    return {source: has for source, has in found.items() if len(has) < len(known)}


def _parse_partial(
    value: str | Mapping[str, Sequence[str]] | Sequence[str] | None, sources: Sequence[str], classes: Sequence[str]
) -> dict[str, list[str]]:
    """`domain=class,class` for each domain, or a mapping; `auto` says nothing of any."""
    if value is None or _is_auto(value):
        return {}
    if not isinstance(value, Mapping):
        written = [value] if isinstance(value, str) else value
        if not all("=" in part for part in written):
            raise MedicError(f"partial {value!r}: give the classes of each domain, as in photo=dog,horse, or auto")
        value = dict(_domain_and_classes(part, sources) for part in written)
    for domain in value:
        check_choice("source domain", domain, sources)
    return {domain: _listed(names, classes) or [] for domain, names in value.items()}


def _domain_and_classes(part: str, sources: Sequence[str]) -> tuple[str, list[str]]:
    """Take `domain=class,class` apart; the name of a domain may have a `=` itself."""
    named = [source for source in sources if part.startswith(f"{source}=")]
    domain = max(named, key=len) if named else part.partition("=")[0]
    return domain, [part[len(domain) + 1 :]]


def _listed(values: Sequence[str] | str | None, names: Sequence[str]) -> list[str] | None:
    """Accept `a b c` and `a,b,c`, or one name; one of `names` may have a comma itself."""
    if values is None:
        return None
    several = [str(value) for value in ([values] if isinstance(values, str | int) else values)]
    return [part for value in several for part in ([value] if value in names else value.split(",")) if part]
