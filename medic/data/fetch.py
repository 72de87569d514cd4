"""Download a benchmark and unpack it into `<root>/<name>`.

Files are downloaded into a folder beside it, so that an interrupted download resumes. The benchmark's folder appears
in one move, after every file was checked and unpacked.
"""

import gzip
import hashlib
import json
import logging
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from filelock import FileLock, Timeout

from medic.data.benchmarks.base import Benchmark, Download, File, keyed_drive
from medic.data.classes import folded
from medic.errors import MedicError, first_line, unwritten
from medic.files import write_text
from medic.logs import console

logger = logging.getLogger(__name__)

RECORDS = ".medic-fetch.json"
LOCK = ".medic-fetch.lock"
TIMEOUT = 30.0  # seconds to wait for the next byte
RETRIES = 3  # after a connection breaks
_DEPTH = 4  # folders that an archive may put around a benchmark
_LINE = 10.0  # seconds between two lines of progress where output is not a terminal


class _Unusable(Exception):
    """A mirror or an archive cannot be used; another one may work."""


def fetch(bench: Benchmark, root: Path, url: str | None = None, archive: Path | None = None) -> Path:
    """Put a benchmark into `<root>/<name>` and return that folder.

    The files come from the first mirror that works, from `url`, or from a local `archive`.
    """
    if bench.download is None:
        raise MedicError(f"dataset {bench.name!r} has no download: `medic datasets {bench.name}` describes it")
    if url is not None and archive is not None:
        raise MedicError("--url and --archive exclude each other: give one of them")
    if url is not None and not re.fullmatch(r"https?://[^\s\[\]]+", url):
        raise MedicError(f"--url {url!r} is no http:// or https:// address; for a local file use --archive")
    folder = root / bench.name
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / LOCK, timeout=0):
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise MedicError(f"{folder} exists: move it away to fetch {bench.name} again")
            if archive is not None:
                _unpack_archive(bench, bench.download, archive, folder)
            else:
                mirrors = bench.download.mirrors if url is None else {"--url": (File(_direct(url)),)}
                _try_mirrors(bench, bench.download, mirrors, folder)
    except Timeout:
        raise MedicError(f"another process fetches into {root}: wait for it, or give another --root") from None
    except OSError as error:
        raise unwritten("folder", error.filename or root, error) from error
    return folder


def _direct(url: str) -> str:
    """Return a direct address for a link to Google Drive that has a resource key, which gdown would drop."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    identifier = re.match(r"/file/d/([\w-]+)", parts.path)
    if parts.hostname not in ("drive.google.com", "docs.google.com") or "resourcekey" not in query:
        return url
    return keyed_drive(identifier[1] if identifier else query["id"][0], query["resourcekey"][0])


def _try_mirrors(bench: Benchmark, download: Download, mirrors: Mapping[str, tuple[File, ...]], folder: Path) -> None:
    """Download and unpack the files of the first mirror that works."""
    failures = []
    for documented, files in mirrors.items():
        host = urlsplit(files[0].url).hostname
        logger.info("%s from %s (documented in %s)", bench.name, host, documented)
        try:
            return _use_mirror(bench, download, files, folder)
        except _Unusable as failure:
            failures.append(f"{host}: {failure}")
            logger.info("%s", failures[-1])
    raise MedicError(
        f"{bench.name} cannot be fetched: put {download.contents} into {folder}, or give an archive of them with "
        f"--archive (see {download.page}); tried {'; '.join(failures)}"
    )


def _use_mirror(bench: Benchmark, download: Download, files: Sequence[File], folder: Path) -> None:
    downloads, records = folder.with_name(f".{bench.name}.download"), folder.with_name(RECORDS)
    checksums = _read_records(records)
    downloads.mkdir(exist_ok=True)
    packed, first = [], {}
    for file in files:
        # The address may hold a secret. Its hash also keeps the partial files of two mirrors apart.
        address = hashlib.sha256(file.url.encode()).hexdigest()
        path = downloads / f"{address[:8]}-{file.file_name}"
        _download(file, path)
        expected = file.checksum or checksums.get(address)
        found = _checksum(path, expected)
        if expected is None:
            first[address] = found
            logger.info("%s: no checksum is published; recording %s in %s", file.file_name, found, records)
        elif found != expected:
            path.unlink()
            origin = "published" if file.checksum else f"recorded in {records}"
            raise _Unusable(f"{file.file_name} has the checksum {found}, but {expected} is {origin}")
        packed.append((path, file))
    try:
        _install(bench, download, packed, folder)
    except _Unusable:
        for path, _ in packed:
            path.unlink()
        raise
    if first:
        write_text(records, json.dumps({"checksums": {**checksums, **first}}, indent=1) + "\n")
    shutil.rmtree(downloads)


def _read_records(path: Path) -> dict[str, str]:
    """Return the checksums of earlier downloads without a published one, by the hash of the address."""
    if not path.exists():
        return {}
    try:
        # Earlier versions recorded a SHA-256 without its name.
        checksums = json.loads(path.read_bytes())["checksums"].items()
        return {address: digest if ":" in digest else f"sha256:{digest}" for address, digest in checksums}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MedicError(f"{path} is damaged: delete it; the next downloads are then trusted again") from None


def _checksum(path: Path, like: str | None) -> str:
    """Return the checksum of a file, with the algorithm of another one or SHA-256."""
    algorithm = like.partition(":")[0] if like else "sha256"
    with path.open("rb") as file:
        return f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"


def _download(file: File, path: Path) -> None:
    """Download a file, or the rest of it, unless it is complete."""
    import gdown  # with requests it takes 0.2 s to import
    import requests

    partial = list(path.parent.glob(f"{path.name}*.part"))
    with _progress(file.file_name) as advance:
        try:
            gdown.download(
                file.url, str(path), quiet=True, use_cookies=False, resume=True, timeout=TIMEOUT, retries=RETRIES,
                progress=advance,
            )  # fmt: skip
        except (gdown.DownloadError, requests.RequestException) as error:
            if not partial or not isinstance(error, gdown.DownloadError) or error.__cause__ is not None:
                raise _Unusable(_reason(error)) from error
            partial[0].unlink()  # the server cannot continue it
            _download(file, path)


def _reason(error: Exception) -> str:
    """Return the reason why a download failed, without the address, which may hold a secret."""
    import gdown
    import requests

    if isinstance(error, gdown.FileURLRetrievalError):
        return "Google Drive offers no download: the file is private or was requested too often"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return f"no connection ({cause.strerror})"
    return first_line(error) if isinstance(error, gdown.DownloadError) else type(error).__name__


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function of the bytes done and in total, which moves a bar or logs a line every few seconds."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), disable=not console().is_terminal) as bar:
        task, last = bar.add_task(name, total=None), time.monotonic()

        def advance(done: int, total: int | None) -> None:
            nonlocal last
            bar.update(task, completed=done, total=total)
            if bar.disable and time.monotonic() - last > _LINE:
                last = time.monotonic()
                logger.info("%s: %.0f MB%s", name, done / 1e6, "" if total is None else f" of {total / 1e6:.0f}")

        yield advance


def _unpack_archive(bench: Benchmark, download: Download, archive: Path, folder: Path) -> None:
    try:
        archive.open("rb").close()
        _install(bench, download, [(archive, File(str(archive)))], folder)
    except _Unusable as failure:
        raise MedicError(f"archive {archive}: {failure}; it must hold {download.contents}") from None


def _install(bench: Benchmark, download: Download, packed: Sequence[tuple[Path, File]], folder: Path) -> None:
    """Unpack files beside the benchmark's folder, and move the result into place once it is complete."""
    staging = folder.with_name(f".{bench.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed process
    try:
        for path, file in packed:
            logger.info("unpacking %s", file.file_name)
            (staging / file.into).mkdir(parents=True, exist_ok=True)
            _unpack(path, file.file_name, staging / file.into)
        found = _find(staging, bench, download)
        if download.prepare is not None:
            try:
                download.prepare(found)
            except (ValueError, LookupError, TypeError) as error:
                raise _Unusable(f"its annotations cannot be read ({error!r})") from error
            _find(found, bench, download)
        found.replace(folder)
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
                    member.filename = member.filename.replace("\\", "/")  # as some programs for Windows write
                    archive.extract(member, folder)
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as tar:
                tar.extractall(folder, filter="data")
        elif head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed, (folder / name.removesuffix(".gz")).open("wb") as out:
                shutil.copyfileobj(packed, out)
        elif head.lstrip().startswith(b"<"):
            raise _Unusable(f"{name} is a web page, not an archive")
        else:
            shutil.copyfile(path, folder / name)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
        raise _Unusable(f"{name} is damaged ({first_line(error)})") from error


def _find(folder: Path, bench: Benchmark, download: Download) -> Path:
    """Return the outermost folder that holds all domains, or all names of a marker."""
    expected = [*download.markers, *([bench.domains] if bench.layouts else [])]
    level = [folder]
    for _ in range(_DEPTH):
        for candidate in level:
            names = [path.name for path in candidate.iterdir()]
            found = {folded(name) for name in (*names, *filter(None, map(bench.domain_of, names)))}
            if any(found.issuperset(map(folded, marker)) for marker in expected):
                return candidate
        level = [child for parent in level for child in sorted(parent.iterdir()) if child.is_dir()]
    raise _Unusable(f"no folder holds {' or '.join(', '.join(marker) for marker in expected)} side by side")
