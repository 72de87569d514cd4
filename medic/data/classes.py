"""Which classes are known, which are unknown, and which of the known a source domain has."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from medic.data.layouts import folded
from medic.errors import MedicError, check_choice

PARTIAL = "-partial"


@dataclass(frozen=True)
class ClassSplit:
    """The classes of an open-set problem; those in neither list take no part in it.

    `partial` names the known classes that a source domain has, for those that have not all of them.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.known) < 2:
            given = ", ".join(self.known) or "none"
            raise MedicError(f"known classes are {given}: there must be two or more to tell apart")
        for domain, classes in self.partial.items():
            if not classes:
                raise MedicError(f"source domain {domain!r} is left without any known class")

    def of_source(self, domain: str) -> tuple[str, ...]:
        """The known classes that a source domain has."""
        return self.partial.get(domain, self.known)

    @property
    def openness(self) -> float:
        """1 - √(2k / (2k + u)) for k known and u unknown classes: 0 where all are known."""
        known, unknown = len(self.known), len(self.unknown)
        return 1 - math.sqrt(2 * known / (2 * known + unknown))

    @property
    def hash(self) -> str:
        """A fingerprint of the names in it, whatever it is called."""
        partial = {domain: list(classes) for domain, classes in self.partial.items()}
        text = json.dumps([list(self.known), list(self.unknown), partial], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def name(self, dataset: str, classes: Sequence[str]) -> str:
        """What it can be asked for by, `pacs-6-1`, or the numbers with a part of the hash if it has no such name."""
        counts = f"{folded(dataset)}-{len(self.known)}-{len(self.unknown)}"
        regular = (self.known, self.unknown) == _cut(classes, len(self.known), len(self.unknown))
        if regular and not self.partial:
            return counts
        sources = list(self.partial)
        rotates = 1 < len(sources) <= len(self.known) and self.partial == rotating_partial(self.known, sources)
        return counts + PARTIAL if regular and rotates else f"{counts}-{self.hash[:8]}"


def named_split(name: str, dataset: str, classes: Sequence[str], sources: Sequence[str]) -> ClassSplit:
    """The split `<dataset>-k-u`: the first k classes are known, the last u unknown.

    With `-partial` at its end every source domain lacks another part of the known classes, as in the paper.
    """
    plain = name.removesuffix(PARTIAL)
    parts = re.fullmatch(r"(.+)-(\d+)-(\d+)", plain)
    if parts is None:
        raise MedicError(f"split {name!r}: give the numbers of known and unknown classes, as in {folded(dataset)}-6-1")
    if folded(parts[1]) != folded(dataset):
        right = f"{folded(dataset)}-k-u, of {len(classes)} classes"
        raise MedicError(f"split {name!r} is not of the dataset {dataset!r}: use {right}, or another dataset")
    known, unknown = int(parts[2]), int(parts[3])
    if known + unknown > len(classes):
        raise MedicError(f"split {name!r} needs {known + unknown} classes, but {dataset} has {len(classes)}")
    split = ClassSplit(*_cut(classes, known, unknown))
    return split if plain == name else ClassSplit(split.known, split.unknown, rotating_partial(split.known, sources))


def listed_split(
    classes: Sequence[str], known: Sequence[str], unknown: Sequence[str] | None, partial: Mapping[str, Sequence[str]]
) -> ClassSplit:
    """The split with these known classes and, unless given too, all others as unknown ones."""
    for name in (*known, *(unknown or ()), *(name for has in partial.values() for name in has)):
        check_choice("class", name, classes)
    both = [name for name in known if name in (unknown or ())]
    if both:
        raise MedicError(f"class {both[0]!r} is among the known and the unknown classes: it can be one of them")
    for domain, has in partial.items():
        strange = [name for name in has if name not in known]
        if strange:
            raise MedicError(f"partial gives {domain!r} the class {strange[0]!r}, which is not a known one")

    def in_order(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in classes if name in set(names))

    rest = [name for name in classes if name not in known] if unknown is None else unknown
    return ClassSplit(in_order(known), in_order(rest), {domain: in_order(has) for domain, has in partial.items()})


def rotating_partial(known: Sequence[str], sources: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Cut the known classes into as many parts as there are sources; the first source lacks the last part, and so on.

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
    """The first and the last classes: splits with the same number of unknown ones share them."""
    return tuple(classes[:known]), tuple(classes[len(classes) - unknown :])
