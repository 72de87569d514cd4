"""Lists of image files with their domains and classes, built without opening any image."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from medic.data.dataset import Dataset, LazyDataset, Part
from medic.data.decode import read_file
from medic.data.images import Images
from medic.data.store import Storage, StoreIndex, find_index, open_store, stream
from medic.errors import MedicError, first_line
from medic.utils.files import IMAGE_SUFFIXES

_ESCAPED = "surrogateescape"  # preserves file names that are not valid UTF-8


@dataclass(frozen=True)
class ImageFile:
    """An image file with its labels. `name` is its path relative to the root."""

    file: str
    name: str
    domain: str
    label: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    part: Part | None = None
    """The official split that the image belongs to, if the benchmark publishes one."""


@dataclass(frozen=True)
class ImageList(LazyDataset):
    """N image files, sorted by domain, class name and file name, as in DomainBed and torchvision."""

    files: tuple[str, ...]
    names: tuple[str, ...]
    domain: Tensor
    """Indices into `domains`, of shape (N,)."""
    label: Tensor
    """Indices into `classes`, of shape (N,)."""
    attributes: Mapping[str, Tensor]
    """Additional integer labels of shape (N,), by name."""
    parts: tuple[Part, ...] | None
    """The official split that each image belongs to, if the benchmark publishes one."""
    parts_problem: str | None = None
    """Why the official lists on disk cannot be used, if they cannot."""
    unique: bool = False
    """Whether duplicate files in a domain are dropped."""
    location: str | None = None
    """The layout and folder in which the benchmark was found."""
    ignored: tuple[str, ...] = ()
    """Folders that do not match any domain or class."""
    dropped: tuple[ImageFile, ...] = ()
    """Files that are known to be damaged and are excluded."""

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def of(
        cls, name: str, entries: Iterable[ImageFile], domains: Sequence[str] = (), classes: Sequence[str] = ()
    ) -> "ImageList":
        """Build a list from files. `domains` and `classes` default to all names that occur, in alphabetical order."""
        image_files = list(entries)
        domains = tuple(domains) or tuple(sorted({entry.domain for entry in image_files}))
        classes = tuple(classes) or tuple(sorted({entry.label for entry in image_files}))
        for folder in (*domains, *classes):
            if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", folder):
                raise MedicError(
                    f"domain or class {folder!r} is not valid UTF-8 or contains control characters: "
                    "rename it, or set LC_ALL=C.UTF-8 if your shell shows the name correctly"
                )
        domain_of, class_of = ({name: i for i, name in enumerate(names)} for names in (domains, classes))
        image_files.sort(key=lambda entry: (domain_of[entry.domain], entry.label, entry.name))
        for file, count in Counter(entry.name for entry in image_files).items():
            if count > 1:
                raise MedicError(f"image {file} is listed {count} times: list every image once")
        parts = tuple(entry.part for entry in image_files if entry.part is not None)
        return cls(
            name,
            domains,
            classes,
            tuple(entry.file for entry in image_files),
            tuple(entry.name for entry in image_files),
            torch.tensor([domain_of[entry.domain] for entry in image_files]),
            torch.tensor([class_of[entry.label] for entry in image_files]),
            _encode([entry.attributes for entry in image_files]),
            parts if parts and len(parts) == len(image_files) else None,
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of additional attributes."""
        return tuple(self.attributes)

    def load(self, storage: Storage) -> Dataset:
        """Load the images from an image store, which is built first if necessary."""
        return self._dataset(*open_store(self, storage))

    def look(self, storage: Storage) -> Dataset:
        """Open the dataset with images decoded on demand. Reads all files once unless an image store exists."""
        index = find_index(self, storage)
        return self._dataset(stream(self, index, storage.size), index)

    def _dataset(self, images: Images, index: StoreIndex) -> Dataset:
        rows = torch.tensor(index.kept)
        return Dataset(
            name=self.name,
            domains=self.domains,
            classes=self.classes,
            images=images,
            domain=self.domain[rows],
            label=self.label[rows],
            paths=tuple(self.names[row] for row in index.kept),
            hash=index.hash,
            attributes={name: values[rows] for name, values in self.attributes.items()},
            parts=None if self.parts is None else tuple(self.parts[row] for row in index.kept),
            parts_problem=self.parts_problem,
            frames=torch.tensor(index.frames).view(-1, 2),
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of images by domain and class."""
        return cell_counts(self)

    def quick_hash(self) -> str:
        """Return a fingerprint of paths, labels, file sizes and timestamps, to identify a store without reading images.

        The timestamps include the last status change (ctime), which programs cannot set. The fingerprint therefore
        changes even if a file is replaced by a file with the same size and modification time.
        """
        digest = hashlib.sha256("\0".join((*self.domains, *self.classes)).encode(errors=_ESCAPED))
        for file, d, c in zip(self.files, self.domain.tolist(), self.label.tolist(), strict=True):
            try:
                status = os.stat(file)
                known = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            except (OSError, ValueError):  # reading the image will report the error
                known = None
            digest.update(f"{os.path.abspath(file)}\0{d}\0{c}\0{known}\n".encode(errors=_ESCAPED))
        return digest.hexdigest()


def cell_counts(data: Dataset | ImageList) -> dict[str, dict[str, int]]:
    """Return the number of images by domain and class."""
    cells = Counter(zip(data.domain.tolist(), data.label.tolist(), strict=True))
    return {name: {label: cells[d, c] for c, label in enumerate(data.classes)} for d, name in enumerate(data.domains)}


def _encode(rows: Sequence[Mapping[str, str]]) -> dict[str, Tensor]:
    """Encode each attribute as integers of shape (N,): whole numbers as they are, text as alphabetical ranks."""
    encoded = {}
    for column in rows[0] if rows else ():
        values = [row[column] for row in rows]
        if all(re.fullmatch(r"-?[0-9]{1,18}", value) for value in values):
            encoded[column] = torch.tensor([int(value) for value in values])
        else:
            ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
            encoded[column] = torch.tensor([ranks[value] for value in values])
    return encoded


def walk(
    folder: str | Path, parts: tuple[str, ...] = (), above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield every image file below a folder, sorted, with the parts of its relative path. Follows symbolic links.

    Paths are strings, because `Path` objects are ten times slower and there may be a million files. `parts` is the
    folder's relative path, and `above` identifies its parent folders.
    """
    try:
        status = os.stat(folder)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise MedicError(f"folder {folder} cannot be read: {error.strerror}") from error
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise MedicError(f"folder {folder} links to one of its parent folders: remove the link")
    for entry in entries:
        if entry.name.startswith("."):
            continue
        named = (*parts, entry.name)
        # False for a link to itself. Reading it as an image will report the error.
        if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
            yield from walk(entry.path, named, above | {identity})
        elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES:
            yield entry.path, named


def list_lines(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the path and the label number from each line of an image list. Paths may contain spaces."""
    try:
        lines = read_file(str(file)).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise MedicError(f"list {file} cannot be read: {first_line(error)}") from error
    for number, line in enumerate(lines, start=1):
        path, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not path or not re.fullmatch(r"-?[0-9]{1,18}", label):
            raise MedicError(f"{file}, line {number}: expected `path label` with a numeric label, got {line.strip()!r}")
        yield path, int(label)
