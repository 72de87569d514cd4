"""Class splits: known and unknown classes, and the known classes of each source domain."""

import hashlib
import json
import math
import random
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from medic.errors import MedicError, check_choice
from medic.utils.splits import LEAVE_ONE_OUT, RANDOM

PARTIAL = "-partial"
UNKNOWN_LABEL = "unknown"
"""Label of rejected images. Known classes cannot have this name."""


@dataclass(frozen=True)
class ClassSplit:
    """The known and unknown classes of an open set problem. Classes in neither list are ignored.

    `partial` lists, for each source domain that lacks some known classes, the known classes it does contain.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.known) < 2:
            names = ", ".join(self.known) or "none"
            how = "add images of other classes, or list more with --known"
            raise MedicError(f"at least two known classes are required, got {names}: {how}")
        check_class_names(self.known)
        for domain, classes in self.partial.items():
            if not classes:
                raise MedicError(f"source domain {domain!r} requires at least one known class: add it with --partial")

    def of_source(self, domain: str) -> tuple[str, ...]:
        """Return the known classes of a source domain."""
        return self.partial.get(domain, self.known)

    @property
    def openness(self) -> float:
        """The openness 1 - √(2k / (2k + u)) for k known and u unknown classes. It is 0 if all classes are known."""
        known, unknown = len(self.known), len(self.unknown)
        return 1 - math.sqrt(2 * known / (2 * known + unknown))

    @property
    def hash(self) -> str:
        """A fingerprint of the class names, independent of the split's name."""
        text = json.dumps([self.known, self.unknown, dict(self.partial)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def name(self, dataset: str, classes: Sequence[str]) -> str:
        """Return a name that `named_split` accepts, such as `pacs-6-1`, or the class counts with a short hash."""
        counts = f"{folded(dataset)}-{len(self.known)}-{len(self.unknown)}"
        regular = (self.known, self.unknown) == _cut(classes, len(self.known), len(self.unknown))
        if regular and not self.partial:
            return counts
        sources = list(self.partial)
        rotates = 1 < len(sources) <= len(self.known) and self.partial == rotating_partial(self.known, sources)
        return counts + PARTIAL if regular and rotates else f"{counts}-{self.hash[:8]}"


def check_class_names(names: Iterable[str]) -> None:
    """Raise an error if a known class is named `unknown`, or if its name contains control characters."""
    for name in names:
        if name == UNKNOWN_LABEL:
            raise MedicError(f"class name {name!r} is reserved: rename the class, or leave it out of --known")
        if has_controls(name):
            raise MedicError(f"class name {name!r} contains control characters: rename the class")


def has_controls(text: str) -> bool:
    """Return whether a text contains control characters, which a terminal could interpret."""
    return not text.isprintable() and any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in text)


def named_split(name: str, dataset: str, classes: Sequence[str], sources: Sequence[str]) -> ClassSplit:
    """Return the split `<dataset>-k-u`: the first k classes are known, and the last u classes are unknown.

    With the suffix `-partial`, each source domain lacks a different part of the known classes, as in the paper.
    """
    plain = name.removesuffix(PARTIAL)
    parts = re.fullmatch(r"(.+)-(\d+)-(\d+)", plain)
    if parts is None:
        raise MedicError(
            f"invalid split {name!r}: expected <dataset>-<known>-<unknown>, as in {folded(dataset)}-6-1, {RANDOM}K or "
            f"{LEAVE_ONE_OUT}"
        )
    if folded(parts[1]) != folded(dataset):
        valid = f"{folded(dataset)}-k-u with k + u at most {len(classes)}"
        raise MedicError(f"split {name!r} does not match dataset {dataset!r}: use {valid}, or change --dataset")
    known, unknown = int(parts[2]), int(parts[3])
    if known + unknown > len(classes):
        raise MedicError(f"split {name!r} requires {known + unknown} classes, but {dataset} has only {len(classes)}")
    split = ClassSplit(*_cut(classes, known, unknown))
    return split if plain == name else ClassSplit(split.known, split.unknown, rotating_partial(split.known, sources))


def drawn_split(name: str, classes: Sequence[str], seed: int) -> ClassSplit:
    """Return a split that depends on the seed: `random:k` or `leave-one-class-out`.

    `random:k` draws k known classes. With `leave-one-class-out`, seed 0 makes the first class unknown, seed 1 the
    second, and so on.
    """
    if name == LEAVE_ONE_OUT:
        left_out = classes[seed % len(classes)]
        return ClassSplit(tuple(one for one in classes if one != left_out), (left_out,))
    count = name.removeprefix(RANDOM)
    if not re.fullmatch(r"\d{1,6}", count) or not 1 < int(count) < len(classes):
        allowed = f"from 2 to {len(classes) - 1}, as in random:2"
        raise MedicError(f"invalid split {name!r}: the number of known classes must be {allowed}")
    known = random.Random(f"classes {seed}").sample(list(classes), int(count))
    return ClassSplit(tuple(one for one in classes if one in known), tuple(one for one in classes if one not in known))


def listed_split(
    classes: Sequence[str], known: Sequence[str], unknown: Sequence[str] | None, partial: Mapping[str, Sequence[str]]
) -> ClassSplit:
    """Return the split with the given known classes. If `unknown` is None, all other classes are unknown."""
    for name in (*known, *(unknown or ()), *(name for has in partial.values() for name in has)):
        check_choice("class", name, classes)
    both = [name for name in known if name in (unknown or ())]
    if both:
        raise MedicError(f"class {both[0]!r} is both known and unknown: remove it from --known or --unknown")
    for domain, has in partial.items():
        strange = [name for name in has if name not in known]
        if strange:
            raise MedicError(f"--partial assigns class {strange[0]!r} to {domain!r}, but this class is not in --known")

    def in_order(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in classes if name in set(names))

    rest = [name for name in classes if name not in known] if unknown is None else unknown
    return ClassSplit(in_order(known), in_order(rest), {domain: in_order(has) for domain, has in partial.items()})


def rotating_partial(known: Sequence[str], sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Divide the known classes into one part per source. The first source lacks the last part, and so on.

    For example, six classes and three sources result in {1,2,3,4}, {1,2,5,6} and {3,4,5,6}, as in the paper.
    """
    count = len(sources)
    if not 1 < count <= len(known):
        raise MedicError(f"partial classes require 2 to {len(known)} source domains, got {count}")
    part = [position * count // len(known) for position in range(len(known))]
    return {
        source: tuple(name for name, p in zip(known, part, strict=True) if p != count - 1 - s)
        for s, source in enumerate(sources)
    }


def _cut(classes: Sequence[str], known: int, unknown: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first `known` and the last `unknown` classes. The unknown classes do not depend on `known`."""
    return tuple(classes[:known]), tuple(classes[len(classes) - unknown :])


def folded(name: str) -> str:
    """Normalise a name for comparison: remove case, spaces, underscores and hyphens."""
    return re.sub(r"[\s_-]", "", name).casefold()
