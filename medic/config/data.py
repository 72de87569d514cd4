"""The data of a run: which images are trained on, validated on and tested on."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, FRACTION, NONNEGATIVE

if TYPE_CHECKING:
    import torch

    from medic.data import (
        Augmentation,
        Benchmark,
        ClassSplit,
        Dataset,
        LazyDataset,
        Problem,
        Storage,
    )

NONE = "none"
"""In place of a target: every domain is trained on, and held-out images of all of them are evaluated."""
EACH = "each"
"""In a sweep, in place of values: every domain of the dataset, one after the other."""


@dataclass(frozen=True, kw_only=True)
class DataSpec(Spec):
    """Images, domains and classes of a run, its validation split, and its augmentation."""

    dataset: str = setting("digits", "benchmark (`medic datasets` lists them)")
    root: str | None = setting(
        None, "folder or table with the images, unless the benchmark is built in", local=True, takes="DIR|FILE"
    )
    image_size: int | None = setting(
        None, "side of an image in pixels (default: the benchmark's or the backbone's)", limits=COUNT, takes="PX"
    )
    store_size: int | None = setting(
        None,
        "side in pixels at which images are decoded and cached, to crop from (default: image size)",
        limits=COUNT,
        takes="PX",
    )
    store: str = setting(
        "auto",
        "where decoded images are kept: gpu, ram, map, stream or auto",
        choices=("auto", "gpu", "ram", "map", "stream"),
        local=True,
    )
    on_bad_image: str = setting("error", "unreadable images: error or skip", choices=("error", "skip"))
    target: str | list[str] | None = setting(
        None,
        "domains to test on, never trained on; several are evaluated one by one; `none` trains on every domain, to use "
        "the model (default: all but the sources)",
        takes="DOMAIN",
    )
    sources: list[str] | None = setting(None, "domains to train on (default: all but the target)", takes="DOMAIN")
    split: str | None = setting(
        None, "known and unknown classes by name: pacs-6-1, or pacs-6-1-partial for partial classes"
    )
    known: list[str] | None = setting(None, "known classes (default: the benchmark's)", takes="CLASS")
    unknown: list[str] | None = setting(None, "unknown classes (default: all others)", takes="CLASS")
    partial: str | dict[str, list[str]] | list[str] | None = setting(
        None, "known classes of sources that lack some: DOMAIN=CLASS,CLASS for each, or auto", takes="DOMAIN=A,B"
    )
    validation: str = setting(
        "cell",
        "how sources hold out validation images: cell, domainbed or official",
        choices=("cell", "domainbed", "official"),
    )
    holdout: float | None = setting(
        None, "fraction of the sources held out for validation (default: 0.2)", limits=FRACTION, takes="FRACTION"
    )
    trial_seed: int | None = setting(
        None, "seed of the validation split (default: the seed)", limits=NONNEGATIVE, takes="N"
    )
    label_noise: float | None = setting(
        None,
        "fraction of the sources' labels, validation included, that are made noisy",
        limits=FRACTION,
        takes="FRACTION",
    )
    augment: str | dict[str, Any] | None = setting(
        None,
        "augmentation: medic, domainbed, digits, none, or values such as scale=0.8:1,jitter=0.4",
        takes="NAME|VALUES",
    )

    @property
    def benchmark(self) -> "Benchmark":
        """The benchmark by its name."""
        from medic.data import benchmark

        return benchmark(self.dataset)

    @property
    def path(self) -> Path | None:
        """The root as a path."""
        return None if self.root is None else Path(self.root)

    def completed(self, opened: "LazyDataset", backbone: str, frozen: bool, seed: int) -> "DataSpec":
        """Return the complete spec for the domains and classes that were found."""
        from medic.data import Generated, choose_domains, describe_augmentation

        domains, bench = opened.domains, self.benchmark
        given = {"target": listed(self.target, domains), "sources": listed(self.sources, domains)}
        for name, values in given.items():
            if EACH in (values or ()) and EACH not in domains:
                raise MedicError(f"{name} {EACH!r} means a run per domain: use `medic sweep --span {name}={EACH}`")
        if given["target"] == [NONE] and NONE not in domains:
            chosen = [check_choice("domain", name, domains) for name in given["sources"] or domains]
            sources, targets = tuple(name for name in domains if name in chosen), tuple[str, ...]([NONE])
        else:
            sources, targets = choose_domains(domains, given["target"], given["sources"])
        official = self.validation == "official"
        if official and (self.holdout or self.trial_seed) is not None:
            raise MedicError("holdout and trial_seed have no effect with validation 'official': leave them out")
        size = self._image_size(backbone)
        generated = bench.image_size if isinstance(opened, Generated) else None  # at one size
        if self.store_size not in (None, generated) and self.store_size < size:
            raise MedicError(f"store_size {self.store_size} is smaller than the images, {size}: raise --store-size")
        classes = self._find_classes(opened, sources)
        return replace(
            self,
            target=list(targets),
            sources=list(sources),
            split=None,  # the lists of classes determine it
            known=list(classes.known),
            unknown=list(classes.unknown),
            partial={domain: list(names) for domain, names in classes.partial.items()} or None,
            holdout=None if official else self.holdout or 0.2,
            trial_seed=None if official else seed if self.trial_seed is None else self.trial_seed,
            augment=describe_augmentation(self._find_augmentation(frozen)),
            image_size=size,
            store_size=self.store_size or generated or size,
        )

    @cached_property
    def classes(self) -> "ClassSplit":
        """The known and unknown classes of a complete spec."""
        from medic.data import ClassSplit

        partial = self.partial if isinstance(self.partial, dict) else {}
        return ClassSplit(
            tuple(self.known or ()),
            tuple(self.unknown or ()),
            {domain: tuple(names) for domain, names in partial.items()},
        )

    @property
    def augmentation(self) -> "Augmentation":
        """The augmentation of a complete spec."""
        from medic.data import make_augmentation

        assert self.augment is not None
        return make_augmentation(self.augment)

    def storage(self, device: "torch.device") -> "Storage":
        """Return how images are kept."""
        from medic.data import Storage

        assert self.store_size is not None
        return Storage(self.store_size, self.store, device, self.on_bad_image)  # type: ignore[arg-type]

    def load(self, opened: "LazyDataset", device: "torch.device") -> "Dataset":
        """Decode the images, or find them decoded."""
        return opened.load(self.storage(device))

    def look(self, opened: "LazyDataset") -> "Dataset":
        """Return the dataset without writing anything; files are decoded only when their images are used."""
        import torch

        return opened.look(self.storage(torch.device("cpu")))

    def divide(self, dataset: "Dataset", seed: int) -> "Problem":
        """Divide the images between training, validation and evaluation; `seed` is the run's, for noisy labels."""
        from medic.data import make_parts, make_problem
        from medic.training import derive

        trial = seed if self.trial_seed is None else self.trial_seed
        drawn = trial if self.validation == "domainbed" else derive(trial, "split")
        parts = make_parts(dataset, self.validation, self.holdout or 0.2, drawn)  # type: ignore[arg-type]
        on_empty = "warn" if self.on_bad_image == "skip" else "error"
        problem = make_problem(
            dataset,
            self.sources or (),
            [name for name in self.target or () if name in dataset.domains],
            self.classes,
            parts,
            on_empty,  # type: ignore[arg-type]
        )
        if self.validation == "official":
            held_out = set(problem.validation.domain.tolist())
            for source in problem.sources:
                if source not in held_out:
                    name = dataset.domains[source]
                    raise MedicError(f"validation 'official': no list or folder holds out images of {name!r}")
        return self._with_noise(problem, dataset, trial) if self.label_noise else problem

    def _with_noise(self, problem: "Problem", dataset: "Dataset", trial: int) -> "Problem":
        """Make some labels of the sources noisy; with noisy labels, validation has no clean ones either."""
        from medic.data.problem import mislabelled
        from medic.training import generator

        known = {
            source: [problem.known.index(name) for name in self.classes.of_source(dataset.domains[source])]
            for source in problem.sources
        }
        draws = generator(trial, "label noise")
        train, validation = (
            mislabelled(samples, self.label_noise or 0.0, known, draws)
            for samples in (problem.train, problem.validation)
        )
        return replace(problem, train=train, validation=validation)

    def fingerprint(self, dataset: "Dataset", axes: Iterable[str]) -> str:
        """Return the hash of the images and of everything else of the data that the result depends on."""
        used = [dataset.hash]
        used += [f"{axis}={dataset.attributes[axis].tolist()}" for axis in sorted(axes)]
        used += [str(dataset.parts)] if self.validation == "official" else []
        return dataset.hash if len(used) == 1 else hashlib.sha256("\0".join(used).encode()).hexdigest()

    def _image_size(self, backbone: str) -> int:
        """Return the side in pixels of the model's inputs: as asked, or the backbone's or the benchmark's."""
        from medic.models import is_sized, native_size

        benchmark = None if is_sized(backbone) else self.benchmark.image_size
        return self.image_size or benchmark or native_size(backbone)

    def _find_augmentation(self, frozen: bool) -> "Augmentation":
        from medic.data import make_augmentation

        bench = self.benchmark
        if frozen:
            if self.augment not in (None, "none"):
                raise MedicError(f"augment {self.augment!r} has no effect on a frozen backbone: leave out --augment")
            return make_augmentation("none")
        augmentation = make_augmentation(self.augment or bench.augment)
        if bench.channels != 3 and (augmentation.jitter or augmentation.grey):
            raise MedicError(
                f"augmentation changes colours, but {bench.name} has {bench.channels} channels: leave out jitter, grey"
            )
        return augmentation

    def _find_classes(self, opened: "LazyDataset", sources: tuple[str, ...]) -> "ClassSplit":
        """Return the known and unknown classes: by the name of a split, by lists, or the benchmark's."""
        from medic.data import listed_split, named_split

        classes = opened.classes
        known, unknown = listed(self.known, classes), listed(self.unknown, classes)
        partial = _parse_partial(self.partial, sources, classes)
        explicit = known is not None or unknown is not None
        if self.split is not None and explicit:
            raise MedicError(f"split {self.split!r} determines the known classes: give --split, or lists of classes")
        if not explicit and (name := self.split or self.benchmark.split) is not None:
            split = named_split(name, self.dataset, classes, sources)
            if split.partial and self.partial is not None:
                raise MedicError(f"split {name!r} determines the classes of each source: leave out --partial")
            if self.partial is None:
                return split
            known, unknown = list(split.known), list(split.unknown)
        present = _present_classes(opened, sources)
        if known is None:  # a class that only the target has cannot be learned
            somewhere = set().union(*present.values())
            known = [name for name in classes if name in somewhere and name not in (unknown or ())]
        if _is_auto(self.partial):
            found = {source: [name for name in known if name in present[source]] for source in sources}
            partial = {source: has for source, has in found.items() if len(has) < len(known)}
        return listed_split(classes, known, unknown, partial)


def listed(values: Sequence[str] | str | None, names: Sequence[str]) -> list[str] | None:
    """Parse `a b c` and `a,b,c`, or one name; one of `names` may contain a comma itself."""
    if values is None:
        return None
    several = [str(value) for value in ([values] if isinstance(values, str | int) else values)]
    return [part for value in several for part in ([value] if value in names else value.split(",")) if part]


def _is_auto(partial: object) -> bool:
    return partial in ("auto", ["auto"])


def _present_classes(opened: "LazyDataset", sources: Sequence[str]) -> dict[str, set[str]]:
    """Return the classes that every source has images of; a dataset that is not a list of files has all."""
    from medic.data import ImageList

    if not isinstance(opened, ImageList):
        return {source: set(opened.classes) for source in sources}
    counts = opened.counts()
    return {source: {name for name in opened.classes if counts[source][name]} for source in sources}


def _parse_partial(
    value: str | Mapping[str, Sequence[str]] | Sequence[str] | None, sources: Sequence[str], classes: Sequence[str]
) -> dict[str, list[str]]:
    """Parse `domain=class,class` for each domain, or a mapping; `auto` and None give nothing."""
    if value is None or _is_auto(value):
        return {}
    if not isinstance(value, Mapping):
        written = [value] if isinstance(value, str) else value
        if not isinstance(written, list | tuple) or not all("=" in str(part) for part in written):
            raise MedicError(f"partial {value!r}: give the classes of each domain, as in photo=dog,horse, or auto")
        value = dict(_domain_and_classes(part, sources) for part in written)
    for domain in value:
        check_choice("source domain", domain, sources)
    return {domain: listed(names, classes) or [] for domain, names in value.items()}


def _domain_and_classes(part: str, sources: Sequence[str]) -> tuple[str, list[str]]:
    """Split `domain=class,class`; the name of a domain may contain a `=` itself."""
    named = [source for source in sources if part.startswith(f"{source}=")]
    domain = max(named, key=len) if named else part.partition("=")[0]
    return domain, [part[len(domain) + 1 :]]
