"""Class splits: the known and unknown classes of a problem, and the known classes of each source domain."""

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
"""The label of rejected images. No known class may have this name."""


@dataclass(frozen=True)
class ClassSplit:
    """The known and unknown classes of an open set problem; classes in neither list are left out.

    `partial` holds the known classes of each source domain that lacks some of them.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.known) < 2:
            names = ", ".join(self.known) or "none"
            raise MedicError(f"known classes are {names}: give two or more with --known")
        check_class_names(self.known)
        for domain, classes in self.partial.items():
            if not classes:
                raise MedicError(f"source domain {domain!r} has no known class: give it one or more with --partial")

    def of_source(self, domain: str) -> tuple[str, ...]:
        """Return the known classes of a source domain."""
        return self.partial.get(domain, self.known)

    @property
    def openness(self) -> float:
        """1 - √(2k / (2k + u)) for k known and u unknown classes; 0 if all classes are known."""
        known, unknown = len(self.known), len(self.unknown)
        return 1 - math.sqrt(2 * known / (2 * known + unknown))

    @property
    def hash(self) -> str:
        """A fingerprint of the class names, whatever the name of the split."""
        text = json.dumps([self.known, self.unknown, dict(self.partial)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def name(self, dataset: str, classes: Sequence[str]) -> str:
        """Return the name that `named_split` accepts, such as `pacs-6-1`, or else the counts and a part of the hash."""
        counts = f"{folded(dataset)}-{len(self.known)}-{len(self.unknown)}"
        regular = (self.known, self.unknown) == _cut(classes, len(self.known), len(self.unknown))
        if regular and not self.partial:
            return counts
        sources = list(self.partial)
        rotates = 1 < len(sources) <= len(self.known) and self.partial == rotating_partial(self.known, sources)
        return counts + PARTIAL if regular and rotates else f"{counts}-{self.hash[:8]}"


def check_class_names(names: Iterable[str]) -> None:
    """Raise an error if a known class is called `unknown`, like the decision, or has control characters in its name."""
    for name in names:
        if name == UNKNOWN_LABEL:
            raise MedicError(f"class {name!r} cannot be a known class: list the others with --known, or rename it")
        if has_controls(name):
            raise MedicError(f"the class {name!r} has control characters in its name: rename the class")


def has_controls(text: str) -> bool:
    """Whether a text contains control characters, which a terminal could execute."""
    return not text.isprintable() and any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in text)


def named_split(name: str, dataset: str, classes: Sequence[str], sources: Sequence[str]) -> ClassSplit:
    """Return the split `<dataset>-k-u`: the first k classes are known, the last u unknown.

    With the suffix `-partial`, each source domain lacks a different part of the known classes, as in the paper.
    """
    plain = name.removesuffix(PARTIAL)
    parts = re.fullmatch(r"(.+)-(\d+)-(\d+)", plain)
    if parts is None:
        raise MedicError(f"split {name!r}: give the numbers of known and unknown classes, as in {folded(dataset)}-6-1")
    if folded(parts[1]) != folded(dataset):
        valid = f"{folded(dataset)}-k-u, of {len(classes)} classes"
        raise MedicError(f"split {name!r} does not belong to dataset {dataset!r}: use {valid}, or another --dataset")
    known, unknown = int(parts[2]), int(parts[3])
    if known + unknown > len(classes):
        raise MedicError(f"split {name!r} needs {known + unknown} classes, but {dataset} has {len(classes)}")
    split = ClassSplit(*_cut(classes, known, unknown))
    return split if plain == name else ClassSplit(split.known, split.unknown, rotating_partial(split.known, sources))


def drawn_split(name: str, classes: Sequence[str], seed: int) -> ClassSplit:
    """Return the split that a seed draws: `random:k` has k known classes, `leave-one-class-out` one unknown class.

    The seeds 0, 1, … leave out one class after the other.
    """
    if name == LEAVE_ONE_OUT:
        left_out = classes[seed % len(classes)]
        return ClassSplit(tuple(one for one in classes if one != left_out), (left_out,))
    count = name.removeprefix(RANDOM)
    if not re.fullmatch(r"\d{1,6}", count) or not 1 < int(count) < len(classes):
        raise MedicError(f"split {name!r}: give a number of known classes from 2 to {len(classes) - 1}, as in random:2")
    known = random.Random(f"classes {seed}").sample(list(classes), int(count))
    return ClassSplit(tuple(one for one in classes if one in known), tuple(one for one in classes if one not in known))


def listed_split(
    classes: Sequence[str], known: Sequence[str], unknown: Sequence[str] | None, partial: Mapping[str, Sequence[str]]
) -> ClassSplit:
    """Return the split with these known classes; all other classes are unknown unless `unknown` is given."""
    for name in (*known, *(unknown or ()), *(name for has in partial.values() for name in has)):
        check_choice("class", name, classes)
    both = [name for name in known if name in (unknown or ())]
    if both:
        raise MedicError(f"class {both[0]!r} is both known and unknown: remove it from --known or --unknown")
    for domain, has in partial.items():
        strange = [name for name in has if name not in known]
        if strange:
            raise MedicError(f"--partial gives {domain!r} the class {strange[0]!r}, which is not in --known")

    def in_order(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in classes if name in set(names))

    rest = [name for name in classes if name not in known] if unknown is None else unknown
    return ClassSplit(in_order(known), in_order(rest), {domain: in_order(has) for domain, has in partial.items()})


def rotating_partial(known: Sequence[str], sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Divide the known classes into one part per source; the first source lacks the last part, and so on.

    Six classes and three sources give the paper's {1,2,3,4}, {1,2,5,6} and {3,4,5,6}.
    """
    count = len(sources)
    if not 1 < count <= len(known):
        raise MedicError(f"partial classes need 2 to {len(known)} source domains, not {count}")
    part = [position * count // len(known) for position in range(len(known))]
    return {
        source: tuple(name for name, p in zip(known, part, strict=True) if p != count - 1 - s)
        for s, source in enumerate(sources)
    }


def _cut(classes: Sequence[str], known: int, unknown: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first and the last classes; splits with the same number of unknown classes share those."""
    return tuple(classes[:known]), tuple(classes[len(classes) - unknown :])


def folded(name: str) -> str:
    """Return a name without case, spaces, underscores and hyphens, which people write differently."""
    return re.sub(r"[\s_-]", "", name).casefold()
