"""Getting a benchmark: its archives are downloaded, checked and unpacked into `<root>/<name>`.

Nothing that comes from outside is trusted. A download is held to a checksum, published or recorded at first use, and
an archive can neither write outside its folder nor become larger than the benchmark's limits. The folder appears in
one move, when everything in it is whole.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from medic.data.download import Records, Report, Silent, Transfer, address_hash, disk_errors
from medic.data.layouts import folded
from medic.data.sources import DOWNLOADS, File, Sorting, Source, direct
from medic.data.unpack import Meter, Unusable, inside, printable, unpack
from medic.errors import MedicError, check_choice
from medic.files import locked

RECORDS = ".medic-fetch.json"
_WRAPPERS = 4  # folders within folders that an archive may put around a benchmark


def fetch(
    name: str, root: Path, url: str | None = None, archive: Path | None = None, report: Report | None = None
) -> Path:
    """Put a benchmark into `<root>/<name>` and return that folder.

    It comes from the first of its published sources that works, or from `url`, or from a local `archive`. A download
    that was stopped is gone on with. Raises MedicError, which says what to put where, if there is no way.
    """
    check_choice("benchmark", name, DOWNLOADS)
    if url is not None and archive is not None:
        raise MedicError("a benchmark comes from a url or from an archive: give one of them, not both")
    if url is not None and not re.fullmatch(r"https?://[^\s\[\]]+", url):
        raise MedicError(f"url {url!r} is no http:// or https:// address: give a local file as the archive")
    with _alone(root):
        job = _Job(name, root, report or Silent())
        if archive is not None:
            return job.from_archive(archive)
        return job.from_sources(DOWNLOADS[name].sources if url is None else [given(url)])


def given(url: str) -> Source:
    """A source that the caller names."""
    name = Path(urlsplit(url).path).name or "download"
    return Source("the given address", (File(direct(url), name, unpacking=None),))


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Make the root and hold it, so that no two processes write the same files."""
    busy = MedicError(f"another process fetches into {root}: wait for it, or give another root")
    with ExitStack() as held:
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(root, busy))
        yield


class _Job:
    """One benchmark on its way into its folder."""

    def __init__(self, name: str, root: Path, report: Report) -> None:
        self.name, self.root, self.report = name, root, report
        self.download = DOWNLOADS[name]
        self.folder = root / name
        with disk_errors(self.folder):
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise MedicError(f"{self.folder} exists and is left as it is: move it away to fetch {name} again")
        self.records = Records(root / RECORDS)

    def from_sources(self, sources: Sequence[Source]) -> Path:
        """Take the first source that works."""
        failures = []
        for source in sources:
            host = urlsplit(source.files[0].url).hostname
            self.report.say(f"{self.name} from {host} (documented: {source.documented})")
            try:
                return self._from_source(source)
            except Unusable as failure:
                failures.append(f"{host}: {printable(str(failure))}")
                self.report.say(failures[-1])
        raise MedicError(
            f"{self.name} cannot be fetched: put {self.download.contents} into {self.folder}, or give an archive of "
            f"that (see {self.download.page}); tried {'; '.join(failures)}"
        )

    def from_archive(self, archive: Path) -> Path:
        """Unpack a local file, which stays."""
        with disk_errors(archive), archive.open("rb"):
            pass
        try:
            self._install([(File(str(archive), archive.name, unpacking=None), archive)])
        except Unusable as failure:
            reason = printable(str(failure))
            raise MedicError(f"archive {archive}: {reason}; it must hold {self.download.contents}") from None
        return self.folder

    def _from_source(self, source: Source) -> Path:
        parts = [(file, self._obtain(file)) for file in source.files]
        try:
            with disk_errors(self.root):
                first = {
                    address_hash(file.url): _digest(part, "sha256")
                    for file, part in parts
                    if self._expected(file) is None
                }
            self._install(parts)
        except Unusable:
            self._discard(*source.files)
            raise
        self.records.checksums.update(first)
        self._discard(*source.files, *(file for other in self.download.sources for file in other.files))
        return self.folder

    def _obtain(self, file: File) -> Path:
        """Download a file, or the rest of it, to its `.part` and hold it to its checksum."""
        part, expected = self._part(file), self._expected(file)
        with disk_errors(part):
            Transfer(file.url, part, self.records, self.download.limits.size, self.report).run()
            if expected is None:
                self.report.say(f"{file.name}: no checksum is published, {self.records.path} keeps the one it has now")
                return part
            algorithm, digest, origin = expected
            if _digest(part, algorithm) != digest:
                self._discard(file)
                raise Unusable(f"{file.name} does not have the {algorithm} {digest} that is {origin}")
        self.report.say(f"{file.name}: has the {algorithm} that is {origin}")
        return part

    def _expected(self, file: File) -> tuple[str, str, str] | None:
        """The algorithm, the hash that a file must have by it, and where that is from; None if nothing is known."""
        if file.checksum is not None:
            return file.checksum.algorithm, file.checksum.digest, f"published by {file.checksum.by}"
        recorded = self.records.checksums.get(address_hash(file.url))
        return None if recorded is None else ("sha256", recorded, f"recorded at first use in {self.records.path}")

    def _part(self, file: File) -> Path:
        """Where a file is downloaded to; the name tells addresses apart."""
        return self.root / f"{file.name}.{address_hash(file.url)[:8]}.part"

    def _discard(self, *files: File) -> None:
        """Remove what was downloaded of files."""
        with disk_errors(self.root):
            for file in files:
                self._part(file).unlink(missing_ok=True)
                self.records.partial.pop(address_hash(file.url), None)
            self.records.write()

    def _install(self, packed: Sequence[tuple[File, Path]]) -> None:
        """Unpack files beside the benchmark's folder, and put it in its place once it is whole."""
        staging = self.root / f".{self.name}.unpacking"
        with disk_errors(staging):
            shutil.rmtree(staging, ignore_errors=True)  # what a killed process left
            try:
                staging.mkdir()
                meter = Meter(self.download.limits)
                for file, path in packed:
                    self.report.say(f"unpacking {file.name}")
                    unpack(file, path, staging / file.into, meter)
                found = _find(staging, self.download.layouts)
                if self.download.sorting is not None:
                    _sort(found, self.download.sorting)
                found.replace(self.folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _find(folder: Path, layouts: Sequence[Sequence[str]]) -> Path:
    """The outermost folder that has all the names of one of the layouts."""
    level = [folder]
    for _ in range(_WRAPPERS):
        for candidate in level:
            names = {folded(path.name) for path in candidate.iterdir()}
            if any(names.issuperset(map(folded, layout)) for layout in layouts):
                return candidate
        level = [child for parent in level for child in sorted(parent.iterdir()) if child.is_dir()]
    raise Unusable(f"there are no {' or '.join(', '.join(layout) for layout in layouts)} side by side in it")


def _sort(folder: Path, sorting: Sorting) -> None:
    """Sort the images of a folder, if they are not yet; those that are annotated otherwise or not at all go."""
    if not (folder / sorting.images).is_dir():
        return
    for file in (file for pattern in sorting.annotations for file in sorted(folder.glob(pattern))):
        for name, place, labels in _annotated(file, sorting):
            image = inside(folder / sorting.images, name)
            targets = [folder / f"location_{place}" / label / image.name for label in labels]
            for target in targets if image.is_file() else ():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(image, target)
            image.unlink(missing_ok=True)
    shutil.rmtree(folder / sorting.images)
    _find(folder, [[f"location_{place}" for place in sorting.places]])


def _annotated(file: Path, sorting: Sorting) -> Iterator[tuple[str, str, list[str]]]:
    """The names of the images that are wanted, the place of each and its classes."""
    try:
        content = json.loads(file.read_bytes())
        names = {category["id"]: category["name"] for category in content["categories"]}
        labels: dict[str, set[str]] = {image["id"]: set() for image in content["images"]}
        for annotation in content["annotations"]:
            labels[annotation["image_id"]].add(names[annotation["category_id"]])
        wanted = [image for image in content["images"] if str(image["location"]) in sorting.places]
        for image in wanted:
            classes = sorted(labels[image["id"]].intersection(sorting.classes))
            yield str(image["file_name"]), str(image["location"]), classes
    except (ValueError, LookupError, TypeError) as error:
        raise Unusable(f"{file.name} has no annotations that can be read ({error!r})") from error
