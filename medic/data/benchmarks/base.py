"""Benchmark descriptions: names, image counts, layouts on disk, downloads and default settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from medic.data.classes import folded
from medic.data.dataset import LazyDataset, Part
from medic.errors import MedicError

# Where downloads are documented. The MD5 checksums of DomainBed's files are published in
# LarsKue/context-aware-domain-generalization, src/adaptive_dg/datasets.
DOMAINBED = "facebookresearch/DomainBed, domainbed/scripts/download.py"
DASSL = "KaiyangZhou/Dassl.pytorch, DATASETS.md"
AZURE = "microsoft/PersonalizedFL, README.md; jindongwang/transferlearning, issue 411"
TFDS = "tensorflow/datasets"


@dataclass(frozen=True)
class Layout:
    """A folder layout in which a benchmark is found on disk."""

    name: str
    folders: tuple[str, ...]
    """Folders below the root that may contain the domains, in addition to the root itself."""
    has_parts: bool = False
    """Whether domain folders contain `train`, `val` … folders, which in turn contain the classes."""
    lists: Mapping[Part, tuple[str, ...]] = field(default_factory=dict)
    """Glob patterns for the official validation and test lists, relative to the folder."""


@dataclass(frozen=True)
class File:
    """A file to download; archives are unpacked."""

    url: str
    name: str = ""
    """File name on disk; defaults to the last part of the URL."""
    checksum: str | None = None
    """Published checksum, `sha256:…` or `md5:…`. If None, `fetch` records the checksum of the first download."""
    into: str = "."
    """Subfolder of the benchmark to unpack into."""

    @property
    def file_name(self) -> str:
        """The name of the file on disk."""
        return self.name or Path(urlsplit(self.url).path).name or "download"


@dataclass(frozen=True)
class Download:
    """Download addresses of a benchmark."""

    mirrors: Mapping[str, tuple[File, ...]]
    """The files on each mirror, in the order in which mirrors are tried. Keys say where the mirror is documented."""
    page: str
    """A web page about the benchmark."""
    contents: str
    """The expected files, described for users who copy them by hand."""
    markers: tuple[tuple[str, ...], ...] = ()
    """Groups of names that identify the benchmark's folder, in addition to the names of its domains."""
    prepare: Callable[[Path], None] | None = None
    """A function that rearranges the unpacked folder."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A named dataset with the default settings for runs on it."""

    name: str
    description: str
    reader: Callable[["Benchmark", Path | None, int], LazyDataset]
    """A function that finds the images, given the benchmark, a root and a seed."""
    domains: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    """Empty if the classes are read from folder names."""
    domain_aliases: Mapping[str, str] = field(default_factory=dict)
    """Alternative folder names. Case, spaces, underscores and hyphens are ignored."""
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    """The default split into known and unknown classes; None if all classes are known."""
    image_size: int | None = None
    """Image side length in pixels; None for the backbone's native size."""
    channels: int = 3
    backbone: str = "resnet50"
    augment: str | None = None
    """Default augmentation; None for that of the starting point (`medic.config.starts`)."""
    lr: float = 1.8e-3
    """Learning rate of the outer SGD on the mean task risk, which the paper calls ε·α·t."""
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Published image counts by domain: one number per class, or a single total."""
    images: int | None = None
    """Published total number of images, if counts by domain are not published."""
    layouts: tuple[Layout, ...] = ()
    dropped: frozenset[str] = frozenset()
    """Images that are known to be damaged and are excluded."""
    built_in: bool = False
    """Whether the images are generated, so that no root is required."""
    seeded: bool = False
    """Whether the images depend on the run's seed."""
    unique: bool = False
    """Whether duplicate images in a domain are dropped."""
    domainbed: str | None = None
    """The dataset's name in DomainBed, whose scripts ignore records with other names."""
    download: Download | None = None
    root_is: str = ""
    """Description of `--root` for error messages; if empty, the folder that contains the benchmark."""

    def open(self, root: Path | None = None, seed: int = 0) -> LazyDataset:
        """Find the images below a root, without decoding them."""
        try:
            return self.reader(self, root, seed)
        except OSError as error:
            raise MedicError(f"--root: {error.filename or root} cannot be read: {error.strerror or error}") from error

    def require_root(self, root: Path | None) -> Path:
        """Return the root, or raise an error if it is None."""
        if root is None:
            place = self.root_is or "the folder that contains its images"
            raise MedicError(f"dataset {self.name!r} requires --root, {place}{self.fetch_hint}")
        return root

    @property
    def root_hint(self) -> str:
        """The end of an error message about `--root`: what to pass, and the download command if available."""
        return f": pass {self.root_is or f'the folder that contains {self.name}'}{self.fetch_hint}"

    @property
    def fetch_hint(self) -> str:
        """The end of an error message: the command that downloads the benchmark, if available."""
        return f"; to download it, run `medic data fetch {self.name} --root DIR`" if self.download else ""

    def domain_of(self, folder: str) -> str | None:
        """Return the domain that a folder name refers to, or None."""
        return self._domains.get(folded(folder))

    def class_of(self, folder: str) -> str | None:
        """Return the class that a folder name refers to, or None."""
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
    """Return the URL of an older Google Drive file that requires a resource key."""
    query = f"id={identifier}&resourcekey={resource_key}&export=download&confirm=t"
    return f"https://drive.usercontent.google.com/download?{query}"


def azure(name: str) -> File:
    """Return a file in Jindong Wang's Azure storage, which mirrors several benchmarks."""
    return File(f"https://wjdcloud.blob.core.windows.net/dataset/{name}")
