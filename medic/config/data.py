"""Settings for the data: images, domains and classes, and how they are split, decoded and augmented."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from medic.config.fields import DatasetSource, PathLike, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, FRACTION, NONNEGATIVE
from medic.utils.splits import is_drawn

if TYPE_CHECKING:
    from medic.data import Augmentation, Benchmark, ClassSplit, LazyDataset

NONE = "none"
"""Value of `target` that trains on all domains and evaluates on their held-out images."""
EACH = "each"
"""Value of `target` or `sources` that sweeps over every domain in the dataset."""

Store = Literal["auto", "gpu", "ram", "map", "stream"]
OnBadImage = Literal["error", "skip"]
Validation = Literal["cell", "domainbed", "official"]


class DataSettings(TypedDict, total=False):
    """Settings for the data. All of them are optional."""

    dataset: Annotated[
        str | DatasetSource,
        setting("benchmark (`medic datasets` lists all), or your own function as MODULE:FUNCTION", "digits"),
    ]
    root: Annotated[
        PathLike,
        setting("folder or table with the images; not needed for built-in benchmarks", local=True, takes="DIR|FILE"),
    ]
    image_size: Annotated[
        int,
        setting(
            "image side length in pixels", default_rule="the benchmark's or the backbone's", limits=COUNT, takes="PX"
        ),
    ]
    store_size: Annotated[
        int,
        setting(
            "side length in pixels at which images are decoded and cached, before cropping",
            default_rule="the image size",
            limits=COUNT,
            takes="PX",
        ),
    ]
    store: Annotated[Store, setting("where to keep decoded images: gpu, ram, map, stream or auto", "auto", local=True)]
    on_bad_image: Annotated[OnBadImage, setting("what to do with unreadable images: error or skip", "error")]
    target: Annotated[
        str | list[str],
        setting(
            "domains to test on, never used for training; several are evaluated separately; `none` trains on all "
            "domains, for deployment",
            default_rule="all but the sources",
            takes="DOMAIN",
        ),
    ]
    sources: Annotated[list[str], setting("domains to train on", default_rule="all but the target", takes="DOMAIN")]
    split: Annotated[
        str,
        setting(
            "named split into known and unknown classes: pacs-6-1, pacs-6-1-partial (sources lack some known classes), "
            "random:K (K known classes, drawn by seed) or leave-one-class-out (one unknown class, chosen by seed)",
            takes="NAME",
        ),
    ]
    known: Annotated[list[str], setting("known classes", default_rule="the benchmark's", takes="CLASS")]
    unknown: Annotated[list[str], setting("unknown classes", default_rule="all others", takes="CLASS")]
    partial: Annotated[
        str | dict[str, list[str]] | list[str],
        setting(
            "for sources that lack known classes, the classes they have: DOMAIN=CLASS,CLASS, or auto to detect them",
            takes="DOMAIN=A,B",
        ),
    ]
    validation: Annotated[Validation, setting("how to hold out validation images: cell, domainbed or official", "cell")]
    holdout: Annotated[
        float,
        setting(
            "fraction of source images held out for validation", default_rule="0.2", limits=FRACTION, takes="FRACTION"
        ),
    ]
    trial_seed: Annotated[
        int, setting("seed for the validation split", default_rule="the seed", limits=NONNEGATIVE, takes="N")
    ]
    label_noise: Annotated[
        float,
        setting(
            "fraction of source labels to corrupt, validation labels included",
            limits=FRACTION,
            takes="FRACTION",
        ),
    ]
    shots: Annotated[
        int,
        setting(
            "training images per class and source domain; validation uses at most as many",
            default_rule="all",
            limits=COUNT,
            takes="K",
        ),
    ]
    train_views: Annotated[
        int,
        setting(
            "views per training image that --tune head caches: the first is plain, the others are augmented",
            1,
            limits=COUNT,
            takes="N",
        ),
    ]
    augment: Annotated[
        str | dict[str, Any],
        setting(
            "augmentation: medic, strong, domainbed, digits, none, or values such as scale=0.8:1,jitter=0.4",
            default_rule="set by the benchmark or the starting point",
            takes="NAME|VALUES",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The images, domains and classes of a run, with its validation split and augmentation."""

    dataset: str
    root: str | None
    """None for a built-in benchmark."""
    image_size: int
    store_size: int
    store: Store
    on_bad_image: OnBadImage
    target: list[str]
    """Empty if the run trains on all domains."""
    sources: list[str]
    known: list[str]
    unknown: list[str]
    partial: dict[str, list[str]] | None
    """For every source that lacks some known classes, the known classes it has."""
    validation: Validation
    holdout: float | None
    """None, like `trial_seed`, if the run uses the dataset's own validation split."""
    trial_seed: int | None
    label_noise: float | None
    shots: int | None
    """None to train on all images."""
    train_views: int
    augment: str

    @cached_property
    def classes(self) -> "ClassSplit":
        """The known and unknown classes."""
        from medic.data import ClassSplit

        partial = {domain: tuple(names) for domain, names in (self.partial or {}).items()}
        return ClassSplit(tuple(self.known), tuple(self.unknown), partial)


def resolve_data(
    settings: Mapping[str, Any], bench: "Benchmark", dataset: "LazyDataset", size: int, default_augment: str
) -> DataConfig:
    """Resolve the data settings against the domains and classes of a dataset.

    `size` is the image side length in pixels. A benchmark without its own augmentation uses `default_augment`.
    """
    from medic.data import Generated, describe_augmentation

    sources, target = _resolve_domains(settings, dataset.domains)
    official = settings["validation"] == "official"
    if official and (settings["holdout"] or settings["trial_seed"]) is not None:
        raise MedicError("--holdout and --trial-seed have no effect with --validation official: omit them")
    generated = bench.image_size if isinstance(dataset, Generated) else None  # generated images have a fixed size
    store_size = settings["store_size"]
    if store_size not in (None, generated) and store_size < size:
        raise MedicError(f"--store-size must be at least the image size ({size}), got {store_size}")
    classes = _resolve_classes(settings, bench, dataset, sources)
    trial_seed = settings["seed"] if settings["trial_seed"] is None else settings["trial_seed"]
    return DataConfig(
        dataset=bench.name,
        root=settings["root"],
        image_size=size,
        store_size=store_size or generated or size,
        store=settings["store"],
        on_bad_image=settings["on_bad_image"],
        target=target,
        sources=sources,
        known=list(classes.known),
        unknown=list(classes.unknown),
        partial={domain: list(names) for domain, names in classes.partial.items()} or None,
        validation=settings["validation"],
        holdout=None if official else settings["holdout"] or 0.2,
        trial_seed=None if official else trial_seed,
        label_noise=settings["label_noise"],
        shots=settings["shots"],
        train_views=settings["train_views"],
        augment=describe_augmentation(_resolve_augmentation(settings, bench, default_augment)),
    )


def _resolve_domains(settings: Mapping[str, Any], domains: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the source and target domains. With target `none`, all selected domains are sources."""
    from medic.data import choose_domains

    target, sources = parse_names(settings["target"], domains), parse_names(settings["sources"], domains)
    for name, values in (("target", target), ("sources", sources)):
        if EACH in (values or ()) and EACH not in domains:
            raise MedicError(f"{name} {EACH!r} requires one run per domain: use `medic sweep --span {name}={EACH}`")
    if NONE in (target or ()) and target != [NONE] and NONE not in domains:
        raise MedicError(f"target {NONE!r} trains on every domain: omit it, or the other targets")
    if target == [NONE] and NONE not in domains:
        chosen = [check_choice("domain", name, domains) for name in sources or domains]
        return [name for name in domains if name in chosen], []
    chosen_sources, chosen_target = choose_domains(domains, target, sources)
    return list(chosen_sources), list(chosen_target)


def resolve_size(image_size: int | None, bench: "Benchmark", backbone: str) -> int:
    """Return the image side length in pixels: the user's, the backbone's if that is fixed, or the benchmark's."""
    from medic.models import is_sized, native_size

    return image_size or (None if is_sized(backbone) else bench.image_size) or native_size(backbone)


def _resolve_augmentation(settings: Mapping[str, Any], bench: "Benchmark", default_augment: str) -> "Augmentation":
    from medic.data import make_augmentation

    augment, views = settings["augment"], settings["train_views"]
    if settings["tune"] != "head" and views > 1:
        raise MedicError(f"--train-views {views} requires --tune head")
    if settings["tune"] == "head" and views == 1:
        if augment not in (None, "none"):
            raise MedicError(
                f"--augment {augment!r} has no effect with --tune head and a single view: add --train-views N"
            )
        return make_augmentation("none")
    augmentation = make_augmentation(augment or bench.augment or default_augment)
    if views > 1 and augmentation == make_augmentation("none"):
        raise MedicError(
            f"--train-views {views} requires augmentation, or all views are equal: add --augment, or omit --train-views"
        )
    if bench.channels != 3 and (augmentation.jitter or augmentation.grey):
        raise MedicError(
            f"jitter and grey require 3 channels, but {bench.name} has {bench.channels}: remove them from --augment"
        )
    return augmentation


def _resolve_classes(
    settings: Mapping[str, Any], bench: "Benchmark", dataset: "LazyDataset", sources: Sequence[str]
) -> "ClassSplit":
    """Return the known and unknown classes from a named split, from class lists, or from the benchmark."""
    from medic.data import drawn_split, listed_split, named_split

    classes, chosen = dataset.classes, settings["partial"]
    known, unknown = parse_names(settings["known"], classes), parse_names(settings["unknown"], classes)
    partial = _parse_partial(chosen, sources, classes)
    explicit = known is not None or unknown is not None
    if settings["split"] is not None and explicit:
        raise MedicError(
            f"split {settings['split']!r} already sets the known classes: use --split, or --known and --unknown"
        )
    if not explicit and (name := settings["split"] or bench.split) is not None:
        if is_drawn(name):
            seed = settings["seed"] if settings["trial_seed"] is None else settings["trial_seed"]
            split = drawn_split(name, classes, seed)
        else:
            split = named_split(name, bench.name, classes, tuple(sources))
        if split.partial and chosen is not None:
            raise MedicError(f"split {name!r} already sets the classes of each source: omit --partial")
        if chosen is None:
            return split
        known, unknown = list(split.known), list(split.unknown)
    present = _present_classes(dataset, sources)
    if known is None:  # a class that only the target contains cannot be learned
        somewhere = set().union(*present.values())
        known = [name for name in classes if name in somewhere and name not in (unknown or ())]
    if _is_auto(chosen):
        all_present = {source: [name for name in known if name in present[source]] for source in sources}
        partial = {source: names for source, names in all_present.items() if len(names) < len(known)}
    return listed_split(classes, known, unknown, partial)


def parse_names(values: Sequence[str] | str | None, names: Sequence[str]) -> list[str] | None:
    """Parse a list of names, a comma-separated string or a single name; entries of `names` may contain commas."""
    if values is None:
        return None
    several = [str(value) for value in ([values] if isinstance(values, str | int) else values)]
    return [part for value in several for part in ([value] if value in names else value.split(",")) if part]


def _is_auto(partial: object) -> bool:
    return partial in ("auto", ["auto"])


def _present_classes(dataset: "LazyDataset", sources: Sequence[str]) -> dict[str, set[str]]:
    """Return the classes that have images in each source: all classes if the dataset has no image list."""
    from medic.data import ImageList

    if not isinstance(dataset, ImageList):
        return {source: set(dataset.classes) for source in sources}
    counts = dataset.counts()
    return {source: {name for name in dataset.classes if counts[source][name]} for source in sources}


def _parse_partial(
    value: str | Mapping[str, Sequence[str]] | Sequence[str] | None, sources: Sequence[str], classes: Sequence[str]
) -> dict[str, list[str]]:
    """Parse a list of `domain=class,class`, or a mapping. Return an empty dict for `auto` and None."""
    if value is None or _is_auto(value):
        return {}
    if not isinstance(value, Mapping):
        written = [value] if isinstance(value, str) else value
        if not isinstance(written, list | tuple) or not all("=" in str(part) for part in written):
            raise MedicError(
                f"--partial must list the classes of each domain, as in photo=dog,horse, or be auto, got {value!r}"
            )
        value = dict(_domain_and_classes(part, sources) for part in written)
    for domain in value:
        check_choice("source domain", domain, sources)
    return {domain: parse_names(names, classes) or [] for domain, names in value.items()}


def _domain_and_classes(part: str, sources: Sequence[str]) -> tuple[str, list[str]]:
    """Split `domain=class,class`; a domain name may itself contain `=`."""
    named = [source for source in sources if part.startswith(f"{source}=")]
    domain = max(named, key=len) if named else part.partition("=")[0]
    return domain, [part[len(domain) + 1 :]]
