"""Which images there are: a list of files with what is known of each, before any is opened."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from medic.errors import MedicError

Part = Literal["train", "val", "test"]
_ESCAPED = "surrogateescape"  # a name that is not UTF-8 keeps its bytes


@dataclass(frozen=True)
class Entry:
    """One image file: its name relative to the root, its domain and class, and further labels."""

    file: str
    name: str
    domain: str
    label: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    part: Part | None = None
    """What official lists or folders keep it for; None where there are none."""


@dataclass(frozen=True)
class ImageList:
    """N image files of some classes in some domains, in the order in which DomainBed and torchvision number them.

    That is by domain, then by the class's name as plain text, then by the file's. `domain` and `label` (N,) are
    positions in `domains` and `classes`; `attributes` holds one integer label (N,) per further column; `parts` says
    what each image is for, where the benchmark does.
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    files: tuple[str, ...]
    names: tuple[str, ...]
    domain: Tensor
    label: Tensor
    attributes: Mapping[str, Tensor]
    parts: tuple[Part, ...] | None
    parts_problem: str | None = None
    """Why official lists that are there cannot be used."""

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def of(
        cls, name: str, entries: Iterable[Entry], domains: Sequence[str] = (), classes: Sequence[str] = ()
    ) -> "ImageList":
        """Collect entries; domains and classes are those found, alphabetically, unless their order is given."""
        found = list(entries)
        domains = tuple(domains) or tuple(sorted({entry.domain for entry in found}))
        classes = tuple(classes) or tuple(sorted({entry.label for entry in found}))
        domain_of = {domain: position for position, domain in enumerate(domains)}
        class_of = {label: position for position, label in enumerate(classes)}
        found.sort(key=lambda entry: (domain_of[entry.domain], entry.label, entry.name))
        _check_distinct(found)
        parts = tuple(entry.part for entry in found if entry.part is not None)
        return cls(
            name,
            domains,
            classes,
            tuple(entry.file for entry in found),
            tuple(entry.name for entry in found),
            torch.tensor([domain_of[entry.domain] for entry in found]),
            torch.tensor([class_of[entry.label] for entry in found]),
            _encoded([entry.attributes for entry in found]),
            parts if parts and len(parts) == len(found) else None,
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """How many images every domain has of every class."""
        return cell_counts(self.domains, self.classes, self.domain, self.label)

    def quick_hash(self) -> str:
        """A fingerprint of names, labels, sizes and times, for finding a cached store without reading any image."""
        digest = hashlib.sha256("\0".join((*self.domains, *self.classes)).encode(errors=_ESCAPED))
        for file, d, c in zip(self.files, self.domain.tolist(), self.label.tolist(), strict=True):
            try:
                status = os.stat(file)
            except OSError:  # it is said when the image is read
                status = None
            known = None if status is None else (status.st_size, status.st_mtime_ns)
            digest.update(f"{os.path.abspath(file)}\0{d}\0{c}\0{known}\n".encode(errors=_ESCAPED))
        return digest.hexdigest()


def cell_counts(
    domains: Sequence[str], classes: Sequence[str], domain: Tensor, label: Tensor
) -> dict[str, dict[str, int]]:
    """How many images every domain has of every class, of the domains and labels (N,) of some images."""
    cells = Counter(zip(domain.tolist(), label.tolist(), strict=True))
    return {name: {label: cells[d, c] for c, label in enumerate(classes)} for d, name in enumerate(domains)}


def _check_distinct(entries: Sequence[Entry]) -> None:
    for name, count in Counter(entry.name for entry in entries).items():
        if count > 1:
            raise MedicError(f"image {name} is listed {count} times: list every image once")


def _encoded(rows: Sequence[Mapping[str, str]]) -> dict[str, Tensor]:
    """Integer labels (N,) for every attribute: the numbers themselves, or positions among the sorted values."""
    columns = list(rows[0]) if rows else []
    encoded = {}
    for column in columns:
        values = [row[column] for row in rows]
        if all(re.fullmatch(r"-?[0-9]{1,18}", value) for value in values):
            encoded[column] = torch.tensor([int(value) for value in values])
        else:
            order = {value: position for position, value in enumerate(sorted(set(values)))}
            encoded[column] = torch.tensor([order[value] for value in values])
    return encoded
