"""Getting a benchmark: its archives are downloaded, checked and unpacked into `<root>/<name>`.

Nothing that comes from outside is trusted. A download is held to a checksum, published or recorded at first use, and
an archive can neither write outside its folder nor become larger than the benchmark's limits. The folder appears in
one move, when everything in it is whole.
"""

import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import socket
import ssl
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from http.client import HTTPException, HTTPMessage, HTTPResponse, InvalidURL
from http.cookiejar import CookieJar
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, Request, build_opener

from medic._version import __version__
from medic.data.layouts import folded
from medic.data.sources import DOWNLOADS, File, Limits, Sorting, Source, Unpacking, direct
from medic.errors import MedicError, check_choice
from medic.files import write_text

RECORDS = ".medic-fetch.json"
TIMEOUT = 30.0  # seconds to wait for a byte
TRIES = 4  # requests in a row that bring nothing new
PAUSE = 1.0  # seconds before the second of them, doubled before each further one
DRIVE_HOSTS = frozenset({"drive.google.com", "docs.google.com", "drive.usercontent.google.com"})

_CHUNK = 1 << 16
_PAGE = 1 << 20  # bytes of a web page that are looked at
_DEPTH = 32  # folders within folders in an archive
_WRAPPERS = 4  # folders within folders that an archive may put around a benchmark
_SLACK = 1 << 20  # bytes that any archive may become, whatever its ratio
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})  # HTTP statuses that are worth another try


class Report(Protocol):
    """Is told what happens."""

    def say(self, line: str) -> None:
        """Something to be read."""

    def advance(self, done: int, total: int | None) -> None:
        """Bytes of the current file that are there, and that there will be if the server says."""


class Silent:
    """For a caller that wants no output."""

    def say(self, line: str) -> None:
        """Nothing."""

    def advance(self, done: int, total: int | None) -> None:
        """Nothing."""


class _Unusable(Exception):
    """A source is of no use; the next one may be."""


class _Cut(Exception):
    """A request failed; another one may not."""


class _Stale(_Cut):
    """What is there of a file cannot be gone on with; from the start it may work."""


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
        return job.from_sources(DOWNLOADS[name].sources if url is None else [_given(url)])


def _given(url: str) -> Source:
    """A source that the caller names."""
    name = Path(urlsplit(url).path).name or "download"
    return Source("the given address", (File(direct(url), name, unpacking=None),))


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Make the root and hold it, so that no two processes write the same files."""
    with _disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MedicError(f"another process fetches into {root}: wait for it, or give another root") from None
        yield
    finally:
        os.close(lock)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (no space, no permission) into one line that names the path."""
    try:
        yield
    except OSError as error:
        raise MedicError(f"{error.filename or path} cannot be read or written: {error.strerror}") from error


class _Job:
    """One benchmark on its way into its folder."""

    def __init__(self, name: str, root: Path, report: Report) -> None:
        self.name, self.root, self.report = name, root, report
        self.download = DOWNLOADS[name]
        self.folder = root / name
        with _disk_errors(self.folder):
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise MedicError(f"{self.folder} exists and is left as it is: move it away to fetch {name} again")
        self.records = _Records(root / RECORDS)

    def from_sources(self, sources: Sequence[Source]) -> Path:
        """Take the first source that works."""
        failures = []
        for source in sources:
            host = urlsplit(source.files[0].url).hostname
            self.report.say(f"{self.name} from {host} (documented: {source.documented})")
            try:
                return self._from_source(source)
            except _Unusable as failure:
                failures.append(f"{host}: {_printable(str(failure))}")
                self.report.say(failures[-1])
        raise MedicError(
            f"{self.name} cannot be fetched: put {self.download.contents} into {self.folder}, or give an archive of "
            f"that (see {self.download.page}); tried {'; '.join(failures)}"
        )

    def from_archive(self, archive: Path) -> Path:
        """Unpack a local file, which stays."""
        with _disk_errors(archive), archive.open("rb"):
            pass
        try:
            self._install([(File(str(archive), archive.name, unpacking=None), archive)])
        except _Unusable as failure:
            reason = _printable(str(failure))
            raise MedicError(f"archive {archive}: {reason}; it must hold {self.download.contents}") from None
        return self.folder

    def _from_source(self, source: Source) -> Path:
        parts = [(file, self._obtain(file)) for file in source.files]
        try:
            with _disk_errors(self.root):
                first = {file.url: _digest(part, "sha256") for file, part in parts if self._expected(file) is None}
            self._install(parts)
        except _Unusable:
            self._discard(*source.files)
            raise
        self.records.checksums.update(first)
        self._discard(*source.files, *(file for other in self.download.sources for file in other.files))
        return self.folder

    def _obtain(self, file: File) -> Path:
        """Download a file, or the rest of it, to its `.part` and hold it to its checksum."""
        part, expected = self._part(file), self._expected(file)
        with _disk_errors(part):
            _Transfer(file.url, part, self.records, self.download.limits.size, self.report).run()
            if expected is None:
                self.report.say(f"{file.name}: no checksum is published, {self.records.path} keeps the one it has now")
                return part
            algorithm, digest, origin = expected
            if _digest(part, algorithm) != digest:
                self._discard(file)
                raise _Unusable(f"{file.name} does not have the {algorithm} {digest} that is {origin}")
        self.report.say(f"{file.name}: has the {algorithm} that is {origin}")
        return part

    def _expected(self, file: File) -> tuple[str, str, str] | None:
        """The algorithm, the hash that a file must have by it, and where that is from; None if nothing is known."""
        if file.checksum is not None:
            return file.checksum.algorithm, file.checksum.digest, f"published by {file.checksum.by}"
        recorded = self.records.checksums.get(file.url)
        return None if recorded is None else ("sha256", recorded, f"recorded at first use in {self.records.path}")

    def _part(self, file: File) -> Path:
        """Where a file is downloaded to; the name tells addresses apart."""
        return self.root / f"{file.name}.{hashlib.sha256(file.url.encode()).hexdigest()[:8]}.part"

    def _discard(self, *files: File) -> None:
        """Remove what was downloaded of files."""
        with _disk_errors(self.root):
            for file in files:
                self._part(file).unlink(missing_ok=True)
                self.records.partial.pop(file.url, None)
            self.records.write()

    def _install(self, packed: Sequence[tuple[File, Path]]) -> None:
        """Unpack files beside the benchmark's folder, and put it in its place once it is whole."""
        staging = self.root / f".{self.name}.unpacking"
        with _disk_errors(staging):
            shutil.rmtree(staging, ignore_errors=True)  # what a killed process left
            try:
                staging.mkdir()
                meter = _Meter(self.download.limits)
                for file, path in packed:
                    self.report.say(f"unpacking {file.name}")
                    _unpack(file, path, staging / file.into, meter)
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
    raise _Unusable(f"there are no {' or '.join(', '.join(layout) for layout in layouts)} side by side in it")


def _sort(folder: Path, sorting: Sorting) -> None:
    """Sort the images of a folder, if they are not yet; those that are annotated otherwise or not at all go."""
    if not (folder / sorting.images).is_dir():
        return
    for file in (file for pattern in sorting.annotations for file in sorted(folder.glob(pattern))):
        for name, place, labels in _annotated(file, sorting):
            image = _inside(folder / sorting.images, name)
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
        raise _Unusable(f"{file.name} has no annotations that can be read ({error!r})") from error


# What is remembered


@dataclass(frozen=True)
class _Partial:
    """What the server said when a download began: the size of the whole, and the ETag or date that it has."""

    size: int | None
    validator: str | None


class _Records:
    """`<root>/.medic-fetch.json`: by address, the checksums at first use and the downloads that can be gone on with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checksums: dict[str, str] = {}
        self.partial: dict[str, _Partial] = {}
        if not path.exists():
            return
        try:
            with _disk_errors(path):
                content = json.loads(path.read_bytes())
            self.checksums = dict(content["checksums"])
            self.partial = {url: _Partial(**entry) for url, entry in content["partial"].items()}
        except (json.JSONDecodeError, UnicodeError, LookupError, TypeError, AttributeError):
            raise MedicError(f"{path} is damaged: delete it, and the next downloads are trusted anew") from None

    def write(self) -> None:
        """Write everything in one move."""
        partial = {url: asdict(entry) for url, entry in self.partial.items()}
        write_text(self.path, json.dumps({"checksums": self.checksums, "partial": partial}, indent=1) + "\n")


# Downloading


class _Transfer:
    """The download of one file to its `.part`, in as many requests as it takes."""

    def __init__(self, url: str, part: Path, records: _Records, limit: int, report: Report) -> None:
        self.url, self.part, self.records, self.limit, self.report = url, part, records, limit, report

    def run(self) -> None:
        """Make requests until the file is whole, or until several in a row bring nothing."""
        failures, most = 0, self._have()
        while not self._is_whole():
            try:
                self._request()
            except _Cut as cut:
                if isinstance(cut, _Stale):
                    self.part.unlink(missing_ok=True)
                failures = 1 if self._have() > most else failures + 1
                most = max(most, self._have())
                if failures == TRIES:
                    raise _Unusable(f"{cut}, {TRIES} times in a row") from cut
                time.sleep(PAUSE * 2 ** (failures - 1))

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _is_whole(self) -> bool:
        partial = self.records.partial.get(self.url)
        return partial is not None and self.part.exists() and self._have() == partial.size

    def _request(self) -> None:
        partial = self.records.partial.get(self.url)
        have = self._have()
        with _open(self.url, _condition(have, partial)) as reply:
            start, total = _position(reply, have, partial)
            if total is not None and total > self.limit:
                raise _Unusable(f"{total} bytes are announced, and {self.limit} are allowed")
            self._note(_Partial(total, _validator(reply.headers)))
            done = self._receive(reply, start, total)
        if total is not None and done < total:
            raise _Cut(f"the connection was cut after {done} of {total} bytes")
        self._note(_Partial(done, None))

    def _note(self, partial: _Partial) -> None:
        self.records.partial[self.url] = partial
        self.records.write()

    def _receive(self, reply: HTTPResponse, start: int, total: int | None) -> int:
        """Write what comes; returns the size that the file then has."""
        done, most = start, self.limit if total is None else total
        with self.part.open("ab" if start else "wb") as part:
            while chunk := _read(reply):
                done += len(chunk)
                if done > most:
                    self.part.unlink()
                    raise _Unusable(f"more bytes came than the {most} that were announced or are allowed")
                part.write(chunk)
                self.report.advance(done, total)
        return done


def _condition(have: int, partial: _Partial | None) -> dict[str, str]:
    """The headers that ask for the rest of a file, provided that it is still the same one."""
    if not have or partial is None:
        return {}
    return {"Range": f"bytes={have}-"} | ({"If-Range": partial.validator} if partial.validator else {})


def _position(reply: HTTPResponse, have: int, partial: _Partial | None) -> tuple[int, int | None]:
    """Where the bytes of a reply belong, and the size of the whole file if the server says."""
    if reply.status != 206:
        length = reply.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    place = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", reply.headers.get("Content-Range", ""))
    known = partial.size if partial else None
    total = int(place[2]) if place and place[2] != "*" else known
    if place is None or int(place[1]) != have or (known is not None and total != known):
        raise _Stale("the file has changed, or its server cannot go on where it stopped")
    return have, total


def _validator(headers: HTTPMessage) -> str | None:
    """What a file can be recognised by: a strong ETag, or else the date of its last change."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")


def _read(reply: HTTPResponse) -> bytes:
    try:
        return reply.read1(_CHUNK)
    except (OSError, HTTPException) as error:
        raise _Cut(f"the connection was cut ({error})") from error


def _open(url: str, headers: Mapping[str, str]) -> HTTPResponse:
    """Ask for a file, and take no web page instead."""
    cookies = CookieJar()
    opener = build_opener(_Redirects, HTTPCookieProcessor(cookies))
    if urlsplit(url).hostname in DRIVE_HOSTS:
        url = _behind(url, opener, cookies)
    reply = _ask(opener, url, headers)
    if _is_page(reply):
        with reply:
            raise _Unusable(f"a web page came instead of a file ({_Page(reply).title.strip()!r})")
    return reply


def _ask(opener: OpenerDirector, url: str, headers: Mapping[str, str]) -> HTTPResponse:
    """Make one request. What fails is either final or worth another try."""
    request = Request(url, headers={"User-Agent": f"medic/{__version__}", **headers})
    kind: type[Exception]
    try:
        reply: HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        kind = _Stale if error.code == 416 else _Cut if error.code in _PASSING else _Unusable
        raise kind(f"HTTP {error.code} {error.reason}") from error
    except URLError as error:
        final = isinstance(error.reason, socket.gaierror | ConnectionRefusedError | ssl.SSLCertVerificationError)
        kind = _Unusable if final else _Cut
        raise kind(f"no connection ({error.reason})") from error
    except (InvalidURL, ValueError) as error:
        raise _Unusable(f"no address ({error})") from error
    except (OSError, HTTPException) as error:
        raise _Cut(f"no answer ({error})") from error
    return reply


def _is_page(reply: HTTPResponse) -> bool:
    return reply.headers.get_content_type() in ("text/html", "application/xhtml+xml")


class _Redirects(HTTPRedirectHandler):
    """Follows a few redirections within the web, and none that gives up encryption."""

    max_redirections = 5

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Look at where it goes before going there."""
        _check_step(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_step(old: str, new: str) -> None:
    before, after = urlsplit(old).scheme, urlsplit(new).scheme
    if after not in ("http", "https") or (before, after) == ("https", "http"):
        raise _Unusable(f"it leads from {before} to {new}")


# Google Drive


def _behind(url: str, opener: OpenerDirector, cookies: CookieJar) -> str:
    """Where the file itself is: Google Drive first asks whether a large one shall really be downloaded."""
    with _ask(opener, url, {}) as reply:
        page = _Page(reply) if _is_page(reply) else None
    return url if page is None else _confirmed(page, reply.url, cookies) or url


class _Page(HTMLParser):
    """A web page: its title, and where Google Drive's form or link to download a file leads."""

    def __init__(self, reply: HTTPResponse) -> None:
        super().__init__()
        self.title = ""
        self.action: str | None = None
        self._fields: dict[str, str] = {}
        self._inside = ""
        content = b""
        while len(content) < _PAGE and (chunk := _read(reply)):
            content += chunk
        self.feed(content.decode(errors="replace"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notice the form, its fields and the link."""
        values = {key: value or "" for key, value in attrs}
        if tag == "title":
            self._inside = tag
        elif tag == "form" and values.get("id") in ("download-form", "downloadForm"):
            self._inside, self.action = tag, values.get("action", "")
        elif tag == "a" and values.get("id") == "uc-download-link":
            self.action = values.get("href", "")
        elif tag == "input" and self._inside == "form" and "name" in values:
            self._fields[values["name"]] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        """Leave the title or the form."""
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        """Notice the title."""
        if self._inside == "title":
            self.title += data

    def target(self, url: str) -> str | None:
        """Where the form or the link leads from the page's own address; None if there is neither."""
        return None if self.action is None else _with_query(urljoin(url, self.action), self._fields)


def _confirmed(page: _Page, url: str, cookies: CookieJar) -> str | None:
    """The address behind Google Drive's confirmation page, by its form, its link or its cookie; None if it is none."""
    tokens = [cookie.value or "" for cookie in cookies if cookie.name.startswith("download_warning")]
    target = page.target(url) or (_with_query(url, {"confirm": tokens[0]}) if tokens else None)
    if target is None or not {urlsplit(url).hostname, urlsplit(target).hostname} <= DRIVE_HOSTS:
        return None
    _check_step(url, target)
    return target


def _with_query(url: str, fields: Mapping[str, str]) -> str:
    parts = urlsplit(url)
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **fields})).geturl()


# Unpacking


class _Meter:
    """Counts what archives become while they become it, and stops at the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._size = self._files = 0
        self._of_archive = self._most_of_archive = 0

    def begin(self, archive_size: int) -> None:
        """An archive is opened."""
        self._of_archive, self._most_of_archive = 0, self.limits.ratio * archive_size + _SLACK

    def count(self) -> None:
        """There is one more file or folder."""
        self._files += 1
        if self._files > self.limits.files:
            raise _Unusable(f"has more than {self.limits.files} files")

    def add(self, size: int) -> None:
        """There are more bytes."""
        self._size += size
        self._of_archive += size
        if self._size > self.limits.size:
            raise _Unusable(f"becomes larger than {self.limits.size} bytes")
        if self._of_archive > self._most_of_archive:
            raise _Unusable(f"becomes more than {self.limits.ratio} times as large as it is")


class _Stream(Protocol):
    """What can be read."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""


class _Metered(io.BufferedIOBase):
    """A stream whose bytes are counted as they are read."""

    def __init__(self, stream: _Stream, meter: _Meter) -> None:
        self._stream, self._meter = stream, meter

    def read(self, size: int | None = -1, /) -> bytes:
        """Read and count."""
        content = self._stream.read(-1 if size is None else size)
        self._meter.add(len(content))
        return content


@contextmanager
def _reading() -> Iterator[None]:
    """Around everything that reads an archive: whatever goes wrong there, the archive is at fault."""
    try:
        yield
    except (
        OSError, EOFError, ValueError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError
    ) as error:  # fmt: skip
        raise _Unusable(f"is damaged ({error})") from error


def _unpack(file: File, path: Path, folder: Path, meter: _Meter) -> None:
    """Write the files of an archive, and nothing but files, into a folder and below."""
    meter.begin(path.stat().st_size)
    try:
        for name, stream in _entries(path, file.name, _kind(path, file.unpacking), meter):
            target = _inside(folder, name)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                out = target.open("xb")
            except (FileExistsError, NotADirectoryError):
                raise _Unusable(f"has {name!r} twice") from None
            with out:
                while chunk := _piece(stream):
                    out.write(chunk)
    except _Unusable as failure:
        raise _Unusable(f"{file.name} {failure}") from failure


def _piece(stream: _Stream) -> bytes:
    with _reading():
        return stream.read(_CHUNK)


def _kind(path: Path, expected: Unpacking | None) -> Unpacking:
    """How a file is unpacked, going by its first bytes; they must agree with what is expected."""
    with _reading(), path.open("rb") as file:
        head = file.read(512)
        found: Unpacking = "plain"
        if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            found = "zip"
        elif head.startswith(b"\x1f\x8b"):
            file.seek(0)
            found = "tar.gz" if _is_tar(gzip.GzipFile(fileobj=file).read(512)) else "gz"
        elif _is_tar(head):
            found = "tar"
    if expected == "plain" or (found != "plain" and expected in (None, found)):
        return expected or found
    page = ", but a web page" if head.lstrip().startswith(b"<") else ""
    raise _Unusable(f"is no {expected or 'zip, tar, tar.gz or gz'} file{page}")


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _entries(path: Path, name: str, kind: Unpacking, meter: _Meter) -> Iterator[tuple[str, _Stream]]:
    """The files in an archive with their names, in turn; a file that is no archive has one, itself."""
    if kind == "zip":
        yield from _zip_entries(path, meter)
        return
    with gzip.open(path) if kind in ("gz", "tar.gz") else path.open("rb") as stream:
        metered = _Metered(stream, meter)
        if kind in ("tar", "tar.gz"):
            yield from _tar_entries(metered, meter)
        else:
            yield name.removesuffix(".gz") if kind == "gz" else name, metered


def _zip_entries(path: Path, meter: _Meter) -> Iterator[tuple[str, _Stream]]:
    with _reading(), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            meter.count()
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _Unusable(f"has {info.filename!r}, which is a link or a device")
            if not info.orig_filename.endswith(("/", "\\")):
                yield info.orig_filename, _Metered(archive.open(info), meter)


def _tar_entries(stream: _Metered, meter: _Meter) -> Iterator[tuple[str, _Stream]]:
    with _reading(), tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            meter.count()
            content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is not None:
                yield member.name, content
            elif not member.isdir():
                raise _Unusable(f"has {member.name!r}, which is a link or a device")
        while stream.read(_CHUNK):  # to the end, where gzip's own checksum is
            pass


def _inside(folder: Path, name: str) -> Path:
    """The path of an archive's file below a folder. Characters that cannot be shown are replaced."""
    parts = re.split(r"[/\\]", name)
    if parts[0] == "" or re.match(r"[A-Za-z]:", name) or ".." in parts:
        raise _Unusable(f"has {name!r}, which leads out of its folder")
    clean = [_printable(part) for part in parts if part not in ("", ".")]
    if not clean or len(clean) > _DEPTH or max(len(part.encode()) for part in clean) > 255:
        raise _Unusable(f"has {name[:80]!r}, which is no name for a file")
    return folder.joinpath(*clean)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "_" for character in text)
