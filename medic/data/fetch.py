"""Download a benchmark and unpack it into `<root>/<name>`.

Files are first downloaded into a folder beside the benchmark's folder, so that interrupted downloads resume. The
benchmark's folder appears in a single move, after every file has been verified and unpacked.
"""

import gzip
import hashlib
import json
import logging
import re
import shutil
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from medic.data.benchmarks.base import Benchmark, Download, File, keyed_drive
from medic.data.classes import folded
from medic.data.download import Unusable, download_file
from medic.errors import MedicError, first_line, unwritten
from medic.utils.files import locked, write_text

logger = logging.getLogger(__name__)

RECORDS = ".medic-fetch.json"
LOCK = ".medic-fetch.lock"
_DEPTH = 4  # levels of folders in an archive that are searched for the benchmark


def fetch(bench: Benchmark, root: Path, url: str | None = None, archive: Path | None = None) -> Path:
    """Download a benchmark into `<root>/<name>`, and return this folder.

    The files come from `url`, from a local `archive`, or by default from the first mirror that works.
    """
    if bench.download is None:
        raise MedicError(f"dataset {bench.name!r} cannot be downloaded: see `medic datasets {bench.name}`")
    if url is not None and archive is not None:
        raise MedicError("--url and --archive are mutually exclusive: pass only one of them")
    if url is not None and not re.fullmatch(r"https?://[^\s\[\]]+", url):
        displayed = "…" if "@" in url else url  # a URL with @ may contain a password
        raise MedicError(f"--url must start with http:// or https://, got {displayed!r}; for local files use --archive")
    if archive is not None and not archive.is_file():
        raise MedicError(f"--archive {archive} is not a file: pass a zip or tar file")
    folder = root / bench.name
    busy = MedicError(f"another process is downloading into {root}: wait for it to finish, or use another --root")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / LOCK, busy):
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise MedicError(f"{folder} already exists: move it away to fetch {bench.name} again")
            if archive is None:
                mirrors = bench.download.mirrors if url is None else {"--url": (File(_direct(url)),)}
                _try_mirrors(bench, bench.download, mirrors, folder)
            else:
                _install(bench, bench.download, [(archive, File(str(archive), archive.name))], folder)
    except Unusable as failure:
        raise MedicError(f"archive {archive}: {failure}; expected contents: {bench.download.contents}") from None
    except OSError as error:
        raise unwritten("folder", error.filename or root, error) from error
    return folder


def _direct(url: str) -> str:
    """Convert a Google Drive link with a resource key, which gdown would drop, into a direct link."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    in_path = re.match(r"/file/d/([\w-]+)", parts.path)
    identifier = in_path[1] if in_path else query.get("id", [""])[0]
    if parts.hostname in ("drive.google.com", "docs.google.com") and identifier and "resourcekey" in query:
        return keyed_drive(identifier, query["resourcekey"][0])
    return url


def _try_mirrors(bench: Benchmark, download: Download, mirrors: Mapping[str, tuple[File, ...]], folder: Path) -> None:
    """Download and unpack the files from the first mirror that works."""
    failures = []
    for documented, files in mirrors.items():
        host = urlsplit(files[0].url).hostname
        logger.info("downloading %s from %s (documented in %s)", bench.name, host, documented)
        try:
            return _use_mirror(bench, download, files, folder)
        except Unusable as failure:
            failures.append(f"{host}: {failure}")
            logger.info("%s", failures[-1])
    raise MedicError(
        f"could not download {bench.name}: copy {download.contents} into {folder}, or pass an archive of these files "
        f"with --archive (see {download.page}); tried {'; '.join(failures)}"
    )


def _use_mirror(bench: Benchmark, download: Download, files: Sequence[File], folder: Path) -> None:
    downloads, records = folder.with_name(f".{bench.name}.download"), folder.with_name(RECORDS)
    checksums = _read_records(records)
    downloads.mkdir(exist_ok=True)
    packed, first = [], {}
    for file in files:
        # The URL may contain a secret, so use its hash. This also separates partial files from different mirrors.
        address = hashlib.sha256(file.url.encode()).hexdigest()
        path = downloads / f"{address[:8]}-{file.file_name}"
        download_file(file.url, path, file.file_name)
        expected = file.checksum or checksums.get(address)
        checksum = _checksum(path, expected)
        if expected is None:
            first[address] = checksum
            logger.info("%s has no published checksum; recording %s in %s", file.file_name, checksum, records)
        elif checksum != expected:
            path.unlink()
            origin = "published" if file.checksum else f"recorded in {records}"
            raise Unusable(f"checksum mismatch for {file.file_name}: got {checksum}, expected {expected} ({origin})")
        packed.append((path, file))
    try:
        _install(bench, download, packed, folder)
    except Unusable:
        for path, _ in packed:
            path.unlink()
        raise
    if first:
        write_text(records, json.dumps({"checksums": {**checksums, **first}}, indent=1) + "\n")
    shutil.rmtree(downloads)


def _read_records(path: Path) -> dict[str, str]:
    """Return the recorded checksums of files without a published checksum, keyed by the hash of the URL."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_bytes())["checksums"])
    except (ValueError, LookupError, TypeError):
        raise MedicError(f"{path} is damaged: delete it to trust the next downloads again") from None


def _checksum(path: Path, like: str | None) -> str:
    """Compute a file's checksum with the same algorithm as the checksum `like`, or with SHA-256 by default."""
    algorithm = like.partition(":")[0] if like else "sha256"
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _install(bench: Benchmark, download: Download, packed: Sequence[tuple[Path, File]], folder: Path) -> None:
    """Unpack files beside the benchmark's folder, then move the complete result into place."""
    staging = folder.with_name(f".{bench.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
    try:
        for path, file in packed:
            logger.info("unpacking %s", file.file_name)
            (staging / file.into).mkdir(parents=True, exist_ok=True)
            _unpack(path, file.file_name, staging / file.into)
        unpacked = _find(staging, bench, download)
        if download.prepare is not None:
            try:
                download.prepare(unpacked)
            except (ValueError, LookupError, TypeError) as error:
                raise Unusable(f"invalid annotations ({error!r})") from error
            _find(unpacked, bench, download)
        unpacked.replace(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(path: Path, name: str, folder: Path) -> None:
    """Unpack a zip, tar or gzip file into a folder; copy any other file there."""
    with path.open("rb") as file:
        head = file.read(512)
    try:
        if head.startswith(b"PK"):
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    member.filename = member.filename.replace("\\", "/")  # some Windows programs write backslashes
                    archive.extract(member, folder)
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as tar:
                tar.extractall(folder, filter="data")
        elif head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed, (folder / name.removesuffix(".gz")).open("wb") as out:
                shutil.copyfileobj(packed, out)
        elif head.lstrip().startswith(b"<"):
            raise Unusable(f"{name} is a web page, not an archive")
        else:
            shutil.copyfile(path, folder / name)
    except Unusable:
        raise
    except Exception as error:  # every archive format raises several types
        if isinstance(error, OSError) and error.errno is not None:  # the disk, not the archive
            raise
        # From None: a MemoryError caused by a damaged header is not a shortage of memory.
        raise Unusable(f"{name} is damaged ({first_line(error)})") from None


def _find(folder: Path, bench: Benchmark, download: Download) -> Path:
    """Return the outermost folder that contains all domains, or all names of a marker."""
    expected = [*download.markers, *([bench.domains] if bench.layouts else [])]
    level = [folder]
    for _ in range(_DEPTH):
        for candidate in level:
            names = [path.name for path in candidate.iterdir()]
            folded_names = {folded(name) for name in (*names, *filter(None, map(bench.domain_of, names)))}
            if any(folded_names.issuperset(map(folded, marker)) for marker in expected):
                return candidate
        level = [child for parent in level for child in sorted(parent.iterdir()) if child.is_dir()]
    raise Unusable(f"expected a folder that contains {' or '.join(', '.join(marker) for marker in expected)}")
