"""Downloading a file in as many requests as it takes, from plain servers and from Google Drive."""

import hashlib
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
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
from medic.data.unpack import Unusable
from medic.errors import MedicError
from medic.files import write_text

TIMEOUT = 30.0  # seconds to wait for a byte
TRIES = 4  # requests in a row that bring nothing new
PAUSE = 1.0  # seconds before the second of them, doubled before each further one
DRIVE_HOSTS = frozenset({"drive.google.com", "docs.google.com", "drive.usercontent.google.com"})

_CHUNK = 1 << 16
_PAGE = 1 << 20  # bytes of a web page that are looked at
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


class _Cut(Exception):
    """A request failed; another one may not."""


class _Stale(_Cut):
    """What is there of a file cannot be gone on with; from the start it may work."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (no space, no permission) into one line that names the path."""
    try:
        yield
    except OSError as error:
        raise MedicError(f"{error.filename or path} cannot be read or written: {error.strerror}") from error


@dataclass(frozen=True)
class _Partial:
    """What the server said when a download began: the size of the whole, and the ETag or date that it has."""

    size: int | None
    validator: str | None


def address_hash(url: str) -> str:
    """What an address is called on disk: it may hold a secret, in its user, its path or its query."""
    return hashlib.sha256(url.encode()).hexdigest()


class Records:
    """`<root>/.medic-fetch.json`: the checksums at first use and the downloads that can be gone on with.

    Both are by the hash of the address.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checksums: dict[str, str] = {}
        self.partial: dict[str, _Partial] = {}
        if not path.exists():
            return
        try:
            with disk_errors(path):
                content = json.loads(path.read_bytes())
            self.checksums = dict(content["checksums"])
            self.partial = {address: _Partial(**entry) for address, entry in content["partial"].items()}
        except (json.JSONDecodeError, UnicodeError, LookupError, TypeError, AttributeError):
            raise MedicError(f"{path} is damaged: delete it, and the next downloads are trusted anew") from None

    def write(self) -> None:
        """Write everything in one move."""
        partial = {address: asdict(entry) for address, entry in self.partial.items()}
        write_text(self.path, json.dumps({"checksums": self.checksums, "partial": partial}, indent=1) + "\n")


class Transfer:
    """The download of one file to its `.part`, in as many requests as it takes."""

    def __init__(self, url: str, part: Path, records: Records, limit: int, report: Report) -> None:
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
                    raise Unusable(f"{cut}, {TRIES} times in a row") from cut
                time.sleep(PAUSE * 2 ** (failures - 1))

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _is_whole(self) -> bool:
        partial = self.records.partial.get(address_hash(self.url))
        return partial is not None and self.part.exists() and self._have() == partial.size

    def _request(self) -> None:
        partial = self.records.partial.get(address_hash(self.url))
        have = self._have()
        with _open(self.url, _condition(have, partial)) as reply:
            start, total = _position(reply, have, partial)
            if total is not None and total > self.limit:
                raise Unusable(f"{total} bytes are announced, and {self.limit} are allowed")
            self._note(_Partial(total, _validator(reply.headers)))
            done = self._receive(reply, start, total)
        if total is not None and done < total:
            raise _Cut(f"the connection was cut after {done} of {total} bytes")
        self._note(_Partial(done, None))

    def _note(self, partial: _Partial) -> None:
        self.records.partial[address_hash(self.url)] = partial
        self.records.write()

    def _receive(self, reply: HTTPResponse, start: int, total: int | None) -> int:
        """Write what comes; returns the size that the file then has."""
        done, most = start, self.limit if total is None else total
        with self.part.open("ab" if start else "wb") as part:
            while chunk := _read(reply):
                done += len(chunk)
                if done > most:
                    self.part.unlink()
                    raise Unusable(f"more bytes came than the {most} that were announced or are allowed")
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
            raise Unusable(f"a web page came instead of a file ({_Page(reply).title.strip()!r})")
    return reply


def _ask(opener: OpenerDirector, url: str, headers: Mapping[str, str]) -> HTTPResponse:
    """Make one request. What fails is either final or worth another try."""
    request = Request(url, headers={"User-Agent": f"medic/{__version__}", **headers})
    kind: type[Exception]
    try:
        reply: HTTPResponse = opener.open(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        kind = _Stale if error.code == 416 else _Cut if error.code in _PASSING else Unusable
        raise kind(f"HTTP {error.code} {error.reason}") from error
    except URLError as error:
        final = isinstance(error.reason, socket.gaierror | ConnectionRefusedError | ssl.SSLCertVerificationError)
        kind = Unusable if final else _Cut
        raise kind(f"no connection ({error.reason})") from error
    except (InvalidURL, ValueError) as error:
        raise Unusable(f"no address ({error})") from error
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
        raise Unusable(f"it leads from {before} to {new}")


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
