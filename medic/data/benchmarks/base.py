"""The description of a benchmark: its names and counts, its layouts on disk, its downloads and default settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from medic.data.classes import folded
from medic.data.dataset import LazyDataset, Part
from medic.errors import MedicError

# Where downloads are documented. LarsKue/context-aware-domain-generalization, src/adaptive_dg/datasets, publishes the
# MD5 checksums of DomainBed's.
DOMAINBED = "facebookresearch/DomainBed, domainbed/scripts/download.py"
DASSL = "KaiyangZhou/Dassl.pytorch, DATASETS.md"
AZURE = "microsoft/PersonalizedFL, README.md; jindongwang/transferlearning, issue 411"
TFDS = "tensorflow/datasets"


@dataclass(frozen=True)
class Layout:
    """One way in which a benchmark is laid out on disk."""

    name: str
    folders: tuple[str, ...]
    """Folders below the root that may hold the domains; the root itself always may."""
    has_parts: bool = False
    """Whether a domain has folders `train`, `val` … between itself and its classes."""
    lists: Mapping[Part, tuple[str, ...]] = field(default_factory=dict)
    """Patterns, relative to the folder, of the official lists of validation and test images."""


@dataclass(frozen=True)
class File:
    """A file to download; archives are unpacked."""

    url: str
    name: str = ""
    """The last part of the URL unless given."""
    checksum: str | None = None
    """A published `sha256:…` or `md5:…`. Without one, `fetch` records the checksum of the first download."""
    into: str = "."
    """The folder of the benchmark to unpack into."""

    @property
    def file_name(self) -> str:
        """The name of the file on disk."""
        return self.name or Path(urlsplit(self.url).path).name or "download"


@dataclass(frozen=True)
class Download:
    """The sources of a benchmark's files."""

    mirrors: Mapping[str, tuple[File, ...]]
    """Alternatives in the order in which they are tried: the files of each, by where it is documented."""
    page: str
    """A web page about the benchmark."""
    contents: str
    """The files that belong into the benchmark's folder, for somebody who copies them by hand."""
    markers: tuple[tuple[str, ...], ...] = ()
    """Names that lie side by side in the benchmark's folder, as alternatives; all of its domains always do."""
    prepare: Callable[[Path], None] | None = None
    """A function that rearranges the unpacked folder."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A dataset with a name, and the settings that a run on it uses by default."""

    name: str
    description: str
    reader: Callable[["Benchmark", Path | None, int], LazyDataset]
    """A function that finds the images below a root, for a seed."""
    domains: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """Empty where the names of folders are the classes."""
    domain_aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names of folders. Case, spaces, underscores and hyphens never matter."""
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    """The name of the usual split into known and unknown classes; None where all classes are known."""
    image_size: int | None = None
    """The side of an image in pixels; None for the native size of the backbone."""
    channels: int = 3
    backbone: str = "resnet50"
    augment: str = "medic"
    lr: float = 1.8e-3
    """The learning rate of outer SGD on the mean task risk: the paper's ε·α·t."""
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Published images by domain: one number per class, or one for all classes."""
    images: int | None = None
    """Published images in total, where counts by domain are not published."""
    layouts: tuple[Layout, ...] = ()
    dropped: frozenset[str] = frozenset()
    """Images that are known to be damaged."""
    built_in: bool = False
    """Whether its images are computed, so that it has no root."""
    seeded: bool = False
    """Whether the images depend on the seed of a run."""
    unique: bool = False
    """Whether equal images in a domain count once."""
    domainbed: str | None = None
    """The name in DomainBed, whose scripts drop records with other names."""
    download: Download | None = None
    root_is: str = ""
    """Description of `--root` in error messages; empty: the folder that contains the benchmark."""

    def open(self, root: Path | None = None, seed: int = 0) -> LazyDataset:
        """Find the images below a root, without decoding them."""
        try:
            return self.reader(self, root, seed)
        except OSError as error:
            raise MedicError(f"--root: {error.filename or root} cannot be read: {error.strerror or error}") from error

    def require_root(self, root: Path | None) -> Path:
        """Return the root, or raise an error if it is None."""
        if root is None:
            place = self.root_is or "the folder that its images are in"
            raise MedicError(f"dataset {self.name!r} needs --root, {place}{self.fetch_hint}")
        return root

    @property
    def root_hint(self) -> str:
        """The end of an error about `--root`: the expected folder or file, and the download command if there is one."""
        return f": give {self.root_is or f'the folder that {self.name} is in'}{self.fetch_hint}"

    @property
    def fetch_hint(self) -> str:
        """The end of an error message: the command that downloads the benchmark, if one does."""
        return f"; `medic data fetch {self.name} --root DIR` downloads it" if self.download else ""

    def domain_of(self, folder: str) -> str | None:
        """Return the domain that a folder holds, or None."""
        return self._domains.get(folded(folder))

    def class_of(self, folder: str) -> str | None:
        """Return the class that a folder holds, or None."""
        return self._classes.get(folded(folder)) if self.classes else folder

    @cached_property
    def _domains(self) -> dict[str, str]:
        return _by_spelling(self.domains, self.domain_aliases)

    @cached_property
    def _classes(self) -> dict[str, str]:
        return _by_spelling(self.classes, self.class_aliases)


def _by_spelling(names: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    return {folded(name): name for name in names} | {folded(alias): name for alias, name in aliases.items()}


def drive(identifier: str, name: str, checksum: str | None = None) -> File:
    """Return a file on Google Drive."""
    return File(f"https://drive.google.com/uc?id={identifier}", name, checksum)


def keyed_drive(identifier: str, resource_key: str) -> str:
    """Return the address of an older file on Google Drive, which requires a resource key."""
    query = f"id={identifier}&resourcekey={resource_key}&export=download&confirm=t"
    return f"https://drive.usercontent.google.com/download?{query}"


def azure(name: str) -> File:
    """Return a file on the storage of Jindong Wang, who keeps copies of several benchmarks."""
    return File(f"https://wjdcloud.blob.core.windows.net/dataset/{name}")
