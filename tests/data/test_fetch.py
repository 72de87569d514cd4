"""Fetching benchmarks, from a server on this machine that can do everything wrong."""

import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request

import pytest

from medic.data import download, unpack
from medic.data.fetch import RECORDS, fetch, given
from medic.data.sources import DOWNLOADS, Checksum, Download, File, Limits, Sorting, Source, direct, drive
from medic.errors import MedicError

TREE = {f"{domain}/{label}/{i}.jpg": os.urandom(3000) for domain in "ab" for label in ("cat", "dog") for i in range(5)}
LIMITS = Limits(size=1 << 20, files=50)


# The server


@dataclass
class Page:
    """What is at an address, and how badly it is served."""

    content: bytes = b""
    type: str = "application/octet-stream"
    etag: str | None = '"v1"'
    ranges: bool = True
    length: bool = True
    cuts: list[int] = field(default_factory=list)
    """Of the first replies, the bytes after which the connection is cut."""
    statuses: list[int] = field(default_factory=list)
    """The first replies are these errors."""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers)))
        page = self.server.pages.get(self.path, Page(status=404))
        status, start = page.statuses.pop(0) if page.statuses else page.status, 0
        wanted, condition = self.headers["Range"], self.headers["If-Range"]
        if (
            status == 200
            and page.ranges
            and wanted
            and condition in (None, page.etag, page.headers.get("Last-Modified"))
        ):
            status, start = 206, int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.reply(page, status, page.content[start:], start)

    def reply(self, page, status, body, start):
        self.send_response(status)
        headers = {"Content-Type": page.type, "Connection": "close"}
        headers |= {"ETag": page.etag} if page.etag else {}
        headers |= {"Content-Length": str(len(body))} if page.length else {}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(page.content)}"
        for key, value in (headers | page.headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[: page.cuts.pop(0)] if page.cuts else body)
        self.close_connection = True

    def log_message(self, *_):
        pass


class Site:
    """The server, its pages by path, and the requests that it had."""

    def __init__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.pages = self._server.pages = {}
        self.requests = self._server.requests = []
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def put(self, path, content=b"", **options):
        """Serve a page and return its address."""
        self.pages[path] = Page(content, **options)
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def header(self, name):
        """What the requests had in a header, in turn."""
        return [headers.get(name) for _, headers in self.requests]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    monkeypatch.setattr(download, "_CHUNK", 4096)
    monkeypatch.setattr(unpack, "_CHUNK", 4096)
    site = Site()
    yield site
    site.close()


# Archives and benchmarks


class Log:
    """Remembers what it is told; `stop` is raised when so many bytes are there."""

    def __init__(self, stop_at=None, stop_on=None):
        self.lines, self.steps, self.stop_at, self.stop_on = [], [], stop_at, stop_on

    def say(self, line):
        self.lines.append(line)
        if self.stop_on and line.startswith(self.stop_on):
            raise KeyboardInterrupt

    def advance(self, done, total):
        self.steps.append((done, total))
        if self.stop_at and done >= self.stop_at:
            raise KeyboardInterrupt


def zip_of(files, mode=None):
    """A zip of contents by name; `mode` is the kind of file that they claim to be."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.filename = info.orig_filename = name  # even if no sane program would
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (mode or 0) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def tar_of(files, kind=tarfile.REGTYPE, compress=True):
    """A tar or tar.gz of contents by name; `kind` is the kind of file that they claim to be."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if compress else "w:") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "" if kind == tarfile.REGTYPE else "/etc/passwd"
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


PACKED = zip_of(TREE)  # about 60 kB


def source(*urls, checksum=None, **options):
    """A source of files by address, all zips unless said otherwise."""
    options = {"unpacking": "zip", **options}
    return Source("nowhere", tuple(File(url, Path(url).name, checksum=checksum, **options) for url in urls))


@pytest.fixture
def toy(monkeypatch):
    """Make `toy` a benchmark with the given sources."""

    def make(*sources, limits=LIMITS):
        download = Download(sources, (("a", "b"),), "<domain>/<class>/<image> for a and b", "http://page", limits)
        monkeypatch.setitem(DOWNLOADS, "toy", download)

    make()
    return make


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def below(folder):
    """The names in a folder, without the records."""
    return sorted(path.name for path in folder.iterdir() if path.name != RECORDS)


def records(root):
    return json.loads((root / RECORDS).read_text())


def refused(call, *words):
    """The one line with which a call fails; it has all of the words."""
    with pytest.raises(MedicError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message, message
    return message


# Downloading


def test_fetched_with_progress(site, toy, tmp_path):
    content = zip_of({f"wrapped/up/{name}": data for name, data in TREE.items()})
    url = site.put("/toy.zip", content)
    toy(source(url))
    log = Log()
    folder = fetch("toy", tmp_path / "new" / "root", report=log)
    assert folder == tmp_path / "new" / "root" / "toy"
    assert tree(folder) == TREE
    done, totals = zip(*log.steps, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == len(content)
    assert set(totals) == {len(content)}
    assert any("no checksum is published" in line for line in log.lines)
    assert below(folder.parent) == ["toy"]
    assert records(folder.parent) == {"checksums": {url: hashlib.sha256(content).hexdigest()}, "partial": {}}


def test_goes_on_after_every_cut_that_brought_something(site, toy, tmp_path):
    toy(source(site.put("/toy.zip", PACKED, cuts=[20_000, 5000, 5000, 5000, 5000, 5000])))
    assert tree(fetch("toy", tmp_path)) == TREE
    assert site.header("Range") == [None, *[f"bytes={have}-" for have in range(20_000, 50_000, 5000)]]
    assert site.header("If-Range") == [None, *['"v1"'] * 6]


@pytest.mark.parametrize(
    "options", [{"cuts": [20_000, *[0] * 99]}, {"cuts": [20_000] * 99, "statuses": [200, 416] * 50}]
)
def test_gives_up_after_cuts_that_bring_nothing(site, toy, tmp_path, options):
    toy(source(site.put("/toy.zip", PACKED, **options)))
    refused(lambda: fetch("toy", tmp_path), "4 times in a row")
    assert len(site.requests) == 1 + 3  # the first brought something


@pytest.mark.parametrize(
    ("etag", "headers", "validator"),
    [
        ('"v1"', {}, '"v1"'),
        ('W/"weak"', {}, None),
        (None, {"Last-Modified": "Fri, 13 Nov 2020 01:02:03 GMT"}, "Fri, 13 Nov 2020 01:02:03 GMT"),
    ],
)
def test_ctrl_c_leaves_the_part_and_the_next_call_goes_on(site, toy, tmp_path, etag, headers, validator):
    toy(source(site.put("/toy.zip", PACKED, etag=etag, headers=headers)))
    with pytest.raises(KeyboardInterrupt):
        fetch("toy", tmp_path, report=Log(stop_at=10_000))
    (part,) = below(tmp_path)
    assert part.startswith("toy.zip.")
    assert part.endswith(".part")
    kept = (tmp_path / part).read_bytes()
    assert 0 < len(kept) < len(PACKED)
    assert PACKED.startswith(kept)
    assert tree(fetch("toy", tmp_path)) == TREE
    assert site.header("Range") == [None, f"bytes={len(kept)}-"]
    assert site.header("If-Range") == [None, validator]
    assert below(tmp_path) == ["toy"]


def test_a_file_that_changed_is_begun_anew(site, toy, tmp_path):
    toy(source(site.put("/toy.zip", os.urandom(50_000))))
    with pytest.raises(KeyboardInterrupt):
        fetch("toy", tmp_path, report=Log(stop_at=10_000))
    site.put("/toy.zip", PACKED, etag='"v2"')
    assert tree(fetch("toy", tmp_path)) == TREE
    assert site.header("If-Range") == [None, '"v1"']


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        ({"ranges": False}, 2),
        ({"headers": {"Content-Range": f"bytes 7-9/{len(PACKED)}"}}, 3),  # from another place
        ({"headers": {"Content-Range": "bytes 20000-20009/99999"}}, 3),  # of another file
        ({"headers": {"Content-Range": "nonsense"}}, 3),
        ({"statuses": [200, 416]}, 3),
    ],
)
def test_a_server_that_cannot_go_on(site, toy, tmp_path, options, replies):
    toy(source(site.put("/toy.zip", PACKED, cuts=[20_000], **options)))
    assert tree(fetch("toy", tmp_path)) == TREE
    assert len(site.requests) == replies


def test_a_server_that_is_busy_or_gives_no_length(site, toy, tmp_path):
    toy(source(site.put("/toy.zip", PACKED, statuses=[503, 429], length=False)))
    log = Log()
    assert tree(fetch("toy", tmp_path, report=log)) == TREE
    assert {total for _, total in log.steps} == {None}
    assert len(site.requests) == 3


def test_whole_files_are_not_downloaded_again(site, toy, tmp_path):
    urls = [site.put(f"/{domain}.zip", zip_of({f"{domain}/cat/0.jpg": os.urandom(9000)})) for domain in "ab"]
    toy(source(*urls))
    with pytest.raises(KeyboardInterrupt):
        fetch("toy", tmp_path, report=Log(stop_on="b.zip: no checksum"))
    fetch("toy", tmp_path)
    assert [path for path, _ in site.requests] == ["/a.zip", "/b.zip"]


def test_several_files_of_several_kinds(site, toy, tmp_path):
    packed = Source(
        "nowhere",
        (
            File(site.put("/list", b"a/cat/0.jpg 0\n", type="text/plain"), "list.txt", "plain", into="splits"),
            File(site.put("/a", gzip.compress(b"idx")), "a.gz", "gz"),
            File(site.put("/b", tar_of({"./b/cat/0.jpg": b"b"})), "b.tgz", "tar.gz"),
        ),
    )
    toy(packed)
    assert tree(fetch("toy", tmp_path)) == {"a": b"idx", "b/cat/0.jpg": b"b", "splits/list.txt": b"a/cat/0.jpg 0\n"}


def test_redirections(site, toy, tmp_path):
    there = site.put("/there", PACKED)
    here = site.put("/here", status=302, headers={"Location": there})
    toy(source(site.put("/file", status=302, headers={"Location": "file:///etc/passwd"})))
    refused(lambda: fetch("toy", tmp_path), "302")
    toy(source(site.put("/round", status=302, headers={"Location": "/round"})))
    refused(lambda: fetch("toy", tmp_path), "HTTP 302", "infinite loop")
    far = [site.put(f"/{i}", status=302, headers={"Location": f"/{i + 1}"}) for i in range(9)]
    site.requests.clear()
    toy(source(far[0]))
    refused(lambda: fetch("toy", tmp_path), "HTTP 302")
    assert len(site.requests) == 1 + 5
    toy(source(here))
    assert tree(fetch("toy", tmp_path)) == TREE
    with pytest.raises(unpack.Unusable, match="from https to http://b"):
        download._Redirects().redirect_request(Request("https://a/x"), None, 302, "", {}, "http://b/x")


def test_no_more_than_the_limit_is_downloaded(site, toy, tmp_path):
    url = site.put("/toy.zip", bytes(2 << 20))
    toy(source(url))
    refused(lambda: fetch("toy", tmp_path), "2097152 bytes are announced, and 1048576 are allowed")
    site.put("/toy.zip", bytes(2 << 20), length=False)
    refused(lambda: fetch("toy", tmp_path), "more bytes came than the 1048576")
    assert below(tmp_path) == []


# Several sources


def test_a_dead_mirror_then_a_good_one(site, toy, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}/toy.zip"
        toy(source(dead), source(site.put("/gone.zip", status=404)), source(site.put("/toy.zip", PACKED)))
        log = Log()
        assert tree(fetch("toy", tmp_path, report=log)) == TREE
    assert any("refused" in line for line in log.lines)
    assert any("HTTP 404" in line for line in log.lines)


def test_all_dead_says_what_to_put_where(site, monkeypatch, tmp_path):
    dead = tuple(source(site.put(f"/{i}.zip", status=code)) for i, code in enumerate((404, 403)))
    monkeypatch.setitem(DOWNLOADS, "pacs", replace(DOWNLOADS["pacs"], sources=dead))
    refused(
        lambda: fetch("pacs", tmp_path),
        "put <domain>/<class>/<image> for the domains art_painting, cartoon, photo and sketch",
        f"into {tmp_path / 'pacs'}",
        "127.0.0.1: HTTP 404 Not Found; 127.0.0.1: HTTP 403 Forbidden",
        DOWNLOADS["pacs"].page,
    )
    assert below(tmp_path) == []


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_published_checksums(site, toy, tmp_path, algorithm):
    good = PACKED
    checksum = Checksum(algorithm, hashlib.new(algorithm, good).hexdigest(), by="somebody")
    bad, fine = site.put("/bad.zip", zip_of({"a/x": b"", "b/x": b""})), site.put("/toy.zip", good)
    toy(source(bad, checksum=checksum))
    refused(lambda: fetch("toy", tmp_path), "bad.zip does not have", checksum.digest, "published by somebody")
    assert below(tmp_path) == []
    toy(source(bad, checksum=checksum), source(fine, checksum=checksum))
    log = Log()
    assert tree(fetch("toy", tmp_path, report=log)) == TREE
    assert any(f"has the {algorithm} that is published by somebody" in line for line in log.lines)
    assert below(tmp_path) == ["toy"]
    assert records(tmp_path) == {"checksums": {}, "partial": {}}


def test_a_recorded_checksum_is_compared_ever_after(site, toy, tmp_path):
    content = PACKED
    url = site.put("/toy.zip", content)
    toy(source(url))
    for line in ("no checksum is published", "recorded at first use"):
        log = Log()
        shutil.rmtree(fetch("toy", tmp_path, report=log))
        assert any(line in said for said in log.lines)
    site.put("/toy.zip", zip_of({**TREE, "b/more": b""}))
    refused(lambda: fetch("toy", tmp_path), f"recorded at first use in {tmp_path / RECORDS}")
    assert below(tmp_path) == []
    assert records(tmp_path)["checksums"] == {url: hashlib.sha256(content).hexdigest()}


def test_what_could_not_be_unpacked_is_not_trusted(site, toy, tmp_path):
    contents = {"/toy.zip": b"PK\x03\x04 no more", "/other.zip": zip_of({"c/x": b""}), "/tar.zip": tar_of(TREE)}
    toy(*[source(site.put(path, content)) for path, content in contents.items()])
    refused(lambda: fetch("toy", tmp_path), "toy.zip is damaged", "no a, b side by side", "tar.zip is no zip file")
    assert below(tmp_path) == []
    assert records(tmp_path)["checksums"] == {}


def test_the_rest_of_a_source_that_failed_goes_in_the_end(site, toy, tmp_path):
    cut = site.put("/cut.zip", PACKED, cuts=[5000, *[0] * 10])
    toy(source(cut), source(site.put("/toy.zip", PACKED)))
    fetch("toy", tmp_path)
    assert below(tmp_path) == ["toy"]


# Web pages and Google Drive


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
def test_a_web_page_instead_of_an_archive(site, toy, tmp_path, kind):
    page = b"<!doctype html><title>Please log in</title><form id=download-form action=/evil></form>"
    toy(source(site.put("/toy.zip", page, type=kind)))
    refused(lambda: fetch("toy", tmp_path), "web page", *(["'Please log in'"] if "html" in kind else []))
    assert [path for path, _ in site.requests] == ["/toy.zip"]
    assert below(tmp_path) == []


FORM = """<html><head><title>Google Drive - Virus scan warning</title></head><body>
<form action="/search"><input name="id" value="not this"></form>
<form id="download-form" action="{action}" method="get"><input type="submit" value="Download anyway"/>
<input type="hidden" name="id" value="ID"><input type="hidden" name="confirm" value="t&amp;t"></form></body></html>"""
LINK = '<html><a id="uc-download-link" href="/uc?export=download&amp;confirm=AbC&amp;id=ID">Download anyway</a></html>'


@pytest.mark.parametrize(
    ("page", "path"),
    [
        (FORM.format(action="/download"), "/download?id=ID&confirm=t%26t"),
        (LINK, "/uc?export=download&confirm=AbC&id=ID"),
        ("<html>Sure?</html>", "/uc?export=download&id=ID&confirm=token"),
    ],
)
def test_drive_is_told_that_we_are_sure(site, toy, tmp_path, monkeypatch, page, path):
    monkeypatch.setattr(download, "DRIVE_HOSTS", frozenset({"127.0.0.1"}))
    cookie = {"Set-Cookie": "download_warning_1=token; Path=/"}
    url = site.put("/uc?export=download&id=ID", page.encode(), type="text/html", headers=cookie)
    site.put(path, PACKED, cuts=[20_000])
    toy(source(url))
    assert tree(fetch("toy", tmp_path)) == TREE
    assert [path for path, _ in site.requests] == ["/uc?export=download&id=ID", path] * 2
    assert site.header("Range") == [None, None, None, "bytes=20000-"]
    assert site.header("Cookie")[1] == "download_warning_1=token"


@pytest.mark.parametrize("page", [FORM.format(action="http://elsewhere.invalid/x"), FORM.format(action="/uc?id=1")])
def test_drive_is_not_followed_elsewhere_or_in_circles(site, toy, tmp_path, monkeypatch, page):
    monkeypatch.setattr(download, "DRIVE_HOSTS", frozenset({"127.0.0.1"}))
    toy(source(site.put("/uc?id=1", page.encode(), type="text/html")))
    site.put("/uc?id=ID&confirm=t%26t", page.encode(), type="text/html")
    refused(lambda: fetch("toy", tmp_path), "a web page came instead of a file ('Google Drive - Virus scan warning')")
    assert len(site.requests) <= 2


def test_drive_asks_nothing_about_a_small_file(site, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "DRIVE_HOSTS", frozenset({"127.0.0.1"}))
    toy(source(site.put("/uc?id=1", PACKED)))
    assert tree(fetch("toy", tmp_path)) == TREE


def test_addresses_on_drive():
    plain = "https://drive.google.com/uc?export=download&id=A_b-1"
    assert direct("https://drive.google.com/file/d/A_b-1/view?usp=sharing") == plain
    assert direct("https://drive.google.com/open?id=A_b-1") == direct(plain) == plain
    assert direct("https://drive.google.com/file/d/A_b-1/view?resourcekey=0-k") == f"{plain}&resourcekey=0-k"
    assert direct("https://drive.google.com/drive/folders/X") == "https://drive.google.com/drive/folders/X"
    assert direct("https://example.org/uc?id=A") == "https://example.org/uc?id=A"


# Archives of one's own, and hostile ones


@pytest.mark.parametrize("pack", [zip_of, tar_of, lambda files: tar_of(files, compress=False)])
def test_a_local_archive(toy, tmp_path, pack):
    archive = tmp_path / "mine"
    wrapped = {f"my copy/{name}": content for name, content in TREE.items()}
    archive.write_bytes(pack({**{f"__MACOSX/{name}": b"" for name in wrapped}, **wrapped}))
    assert tree(fetch("toy", tmp_path / "root", archive=archive)) == TREE
    assert below(tmp_path) == ["mine", "root"]


def test_a_url_of_ones_own(site, toy, tmp_path):
    url = site.put("/mine?x=1", tar_of(TREE))
    assert tree(fetch("toy", tmp_path, url=url)) == TREE
    assert below(tmp_path) == ["toy"]
    assert list(records(tmp_path)["checksums"]) == [url]
    assert given("https://drive.google.com/file/d/A/view").files[0].url == drive("A")


TWO = {"a/x": b"", "b/x": b""}
HOSTILE = {
    "parent in zip": (zip_of({**TWO, "a/../../out": b"!"}), "leads out"),
    "parent in tar": (tar_of({**TWO, "../out": b"!"}), "leads out"),
    "absolute in zip": (zip_of({**TWO, "/medic-out": b"!"}), "leads out"),
    "absolute in tar": (tar_of({**TWO, "/medic-out": b"!"}), "leads out"),
    "backslashes": (zip_of({**TWO, "a\\..\\..\\out": b"!"}), "leads out"),
    "drive letter": (zip_of({**TWO, "C:\\out": b"!"}), "leads out"),
    "empty name": (tar_of({**TWO, ".": b"!"}), "no name for a file"),
    "long name": (tar_of({**TWO, "a" * 300: b"!"}), "no name for a file"),
    "deep name": (tar_of({**TWO, "a/" * 50 + "x": b"!"}), "no name for a file"),
    "symbolic link in zip": (zip_of({**TWO, "out": b"/etc/passwd"}, mode=0o120777), "a link or a device"),
    "symbolic link in tar": (tar_of({"out": b""}, kind=tarfile.SYMTYPE), "a link or a device"),
    "hard link": (tar_of({"out": b""}, kind=tarfile.LNKTYPE), "a link or a device"),
    "device": (tar_of({"out": b""}, kind=tarfile.CHRTYPE), "a link or a device"),
    "pipe in zip": (zip_of({"out": b""}, mode=0o010644), "a link or a device"),
    "pipe in tar": (tar_of({"out": b""}, kind=tarfile.FIFOTYPE), "a link or a device"),
    "too many in zip": (zip_of({f"a/{i}": b"" for i in range(51)}), "more than 50 files"),
    "too many in tar": (tar_of({f"a/{i}": b"" for i in range(51)}), "more than 50 files"),
    "too large": (zip_of({**TWO, "a/y": os.urandom(1 << 20), "b/y": b"!"}), "larger than 1048576 bytes"),
    "file and folder": (zip_of({**TWO, "a": b"!"}), "twice"),
    "folder in file": (zip_of({**TWO, "a/x/y": b"!"}), "twice"),
    "twice": (tar_of({**TWO, "./a/x": b"!"}), "twice"),
    "cut zip": (PACKED[:-30], "is damaged"),
    "cut tar.gz": (tar_of(TREE)[:-30], "is damaged"),
    "cut tar.gz, after all files": (gzip.compress(tar_of(TREE, compress=False) + bytes(300_000))[:-4], "is damaged"),
    "cut tar": (tar_of(TREE, compress=False)[:5000], "is damaged"),
    "cut gz": (gzip.compress(os.urandom(5000))[:-30], "is damaged"),
    "wrong bytes": (zip_of({"a/x": b"x" * 99}).replace(b"a/x", b"b/y", 1), "is damaged"),
    "encrypted": (zip_of(TWO).replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"), "damaged"),
    "empty zip": (zip_of({}), "there are no a, b side by side"),
    "nothing": (b"", "is no zip, tar, tar.gz or gz file"),
    "a web page": (b"\n<html>", "but a web page"),
    "something else": (zip_of({"c/x": b""}), "there are no a, b side by side"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_leave_nothing(toy, tmp_path, name):
    content, words = HOSTILE[name]
    archive, root = tmp_path / "hostile", tmp_path / "deep" / "root"
    archive.write_bytes(content)
    refused(lambda: fetch("toy", root, archive=archive), f"archive {archive}: ", words)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["deep", "deep/root", "hostile"]
    assert not Path("/medic-out").exists()


@pytest.mark.parametrize("pack", [zip_of, tar_of, lambda files: gzip.compress(b"".join(files.values()))])
def test_bombs_are_stopped_while_they_go_off(toy, tmp_path, pack, monkeypatch):
    toy(limits=Limits(size=1 << 30, files=50))
    written = []
    monkeypatch.setattr(unpack.Meter, "add", _spied(unpack.Meter.add, written))
    archive = tmp_path / "bomb"
    archive.write_bytes(pack({"a/x": bytes(30 << 20)}))
    refused(lambda: fetch("toy", tmp_path / "root", archive=archive), "more than 100 times as large as it is")
    assert sum(written) < 101 * archive.stat().st_size + (2 << 20)
    assert below(tmp_path / "root") == []


def _spied(add, written):
    def spy(self, size):
        written.append(size)
        add(self, size)

    return spy


def test_a_header_cannot_lie_about_the_size(toy, tmp_path):
    toy(limits=Limits(size=100_000, files=50))
    content = zip_of({**TWO, "a/y": bytes(900_000)})
    archive = tmp_path / "liar"
    archive.write_bytes(content.replace((900_000).to_bytes(4, "little"), (9).to_bytes(4, "little")))
    refused(lambda: fetch("toy", tmp_path / "root", archive=archive), "liar")
    assert below(tmp_path / "root") == []


def test_odd_names_are_made_plain(toy, tmp_path):
    archive = tmp_path / "odd"
    odd = {"./a//cat/\x1b[31mred\n.jpg": b"1", "b\\cat\\ü …x.jpg": b"2", "a/.../~": b"3", "b/\u202egpj.exe": b"4"}
    archive.write_bytes(tar_of(odd))
    expected = {"a/cat/_[31mred_.jpg": b"1", "b/cat/ü …x.jpg": b"2", "a/.../~": b"3", "b/_gpj.exe": b"4"}
    assert tree(fetch("toy", tmp_path / "root", archive=archive)) == expected
    archive.write_bytes(zip_of({"a/": b"", "b\\": b"", "a/x": b"1", "b\\x": b"2"}))  # with folders, as Windows has it
    assert tree(fetch("toy", tmp_path / "other", archive=archive)) == {"a/x": b"1", "b/x": b"2"}


# The folder, and what the disk says


def test_a_folder_that_exists_is_left_alone(site, toy, tmp_path):
    toy(source(site.put("/toy.zip", PACKED)))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mine").write_text("!")
    refused(lambda: fetch("toy", tmp_path), f"{tmp_path / 'toy'} exists")
    assert tree(tmp_path) == {"toy/mine": b"!"}
    (tmp_path / "toy" / "mine").unlink()
    assert tree(fetch("toy", tmp_path)) == TREE
    assert len(site.requests) == 1


def test_stopped_while_unpacking(site, toy, tmp_path, monkeypatch):
    toy(source(site.put("/toy.zip", PACKED)))
    pieces = []

    def stop(stream):
        pieces.append(stream.read(100))
        if len(pieces) == 5:
            raise KeyboardInterrupt
        return pieces[-1]

    with monkeypatch.context() as patch:
        patch.setattr(unpack, "_piece", stop)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy", tmp_path)
    (part,) = below(tmp_path)
    assert part.endswith(".part")
    assert tree(fetch("toy", tmp_path)) == TREE
    assert len(site.requests) == 1


def test_killed_while_unpacking(toy, tmp_path):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(PACKED)
    child = os.fork()
    if not child:
        unpack._piece = lambda stream: os.kill(os.getpid(), signal.SIGKILL)
        try:
            fetch("toy", root, archive=archive)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not (root / "toy").exists()
    assert tree(fetch("toy", root, archive=archive)) == TREE
    assert below(root) == ["toy"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(site, toy, tmp_path):
    url = site.put("/toy.zip", PACKED)
    toy(source(url))
    part = tmp_path / f"toy.zip.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part"
    part.symlink_to("/dev/full")
    refused(lambda: fetch("toy", tmp_path), part, "No space left on device")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(toy, tmp_path):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(PACKED)
    root.mkdir(mode=0o500)
    refused(lambda: fetch("toy", root, archive=archive), root, "Permission denied")


def test_mistakes_of_the_callers(toy, tmp_path):
    refused(lambda: fetch("pasc", tmp_path), "did you mean 'pacs'?")
    refused(lambda: fetch("toy", tmp_path, url="file:///etc/passwd"), "file:///etc/passwd", "archive")
    refused(lambda: fetch("toy", tmp_path, url="http://[/x"), "http://[/x", "archive")
    refused(lambda: fetch("toy", tmp_path, url="http://127.0.0.1/ü"), "no address")
    refused(lambda: fetch("toy", tmp_path, url="http://x", archive=tmp_path), "not both")
    refused(lambda: fetch("toy", tmp_path, archive=tmp_path / "none.zip"), tmp_path / "none.zip", "No such file")
    (tmp_path / "file").touch()
    refused(lambda: fetch("toy", tmp_path / "file"), tmp_path / "file", "File exists")
    for damage in ("junk", "[]", '{"checksums": 1, "partial": {}}', '{"checksums": {}, "partial": {"u": {"x": 1}}}'):
        (tmp_path / RECORDS).write_text(damage)
        refused(lambda: fetch("toy", tmp_path), tmp_path / RECORDS, "is damaged: delete it")


def test_one_at_a_time(toy, tmp_path):
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    refused(lambda: fetch("toy", tmp_path), "another process", tmp_path)
    os.close(lock)


# Camera traps


def camera_traps(**changes):
    """Pictures from two of the places and elsewhere, one of them missing, and what was seen in each."""
    images = {
        "i1": ("1.jpg", 38),
        "i2": ("2.jpg", "46"),
        "i3": ("3.jpg", 7),
        "i4": ("4.jpg", 38),
        "i5": ("gone.jpg", 38),
    }
    seen = {"i1": [1, 1, 2], "i2": [3], "i3": [1], "i4": [4], "i5": [1]}
    content = {
        "images": [{"id": key, "file_name": name, "location": place} for key, (name, place) in images.items()],
        "annotations": [{"image_id": key, "category_id": label} for key, labels in seen.items() for label in labels],
        "categories": [{"id": i, "name": name} for i, name in enumerate(("bird", "cat", "empty", "car"), start=1)],
    }
    pictures = {f"images/{name}": name.encode() for name, _ in images.values() if name != "gone.jpg"}
    return {"labels/train.json": json.dumps(content | changes).encode(), **pictures}


@pytest.fixture
def traps(monkeypatch):
    """Make `toy` a benchmark of camera traps at two places."""
    sorting = Sorting("images", ("labels/*.json",), ("38", "46"), ("bird", "cat", "empty"))
    layouts = (("images", "labels"), ("location_38", "location_46"))
    monkeypatch.setitem(DOWNLOADS, "toy", Download((), layouts, "traps", "http://page", LIMITS, sorting))


def test_camera_traps_are_sorted_as_domainbed_sorts_them(traps, tmp_path):
    archive = tmp_path / "toy.zip"
    archive.write_bytes(zip_of(camera_traps()))
    folder = fetch("toy", tmp_path, archive=archive)
    assert {name: data for name, data in tree(folder).items() if name != "labels/train.json"} == {
        "location_38/bird/1.jpg": b"1.jpg",
        "location_38/cat/1.jpg": b"1.jpg",
        "location_46/empty/2.jpg": b"2.jpg",
    }
    archive.write_bytes(tar_of({f"sorted/{name}": data for name, data in tree(folder).items()}))
    assert tree(fetch("toy", tmp_path / "again", archive=archive)) == tree(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": []}, "no annotations that can be read"),
        ({"categories": 1}, "no annotations that can be read"),
        ({"annotations": []}, "no location_38, location_46 side by side"),
        ({"images": [{"id": f"i{i}", "file_name": "../../../out", "location": 38} for i in range(1, 6)]}, "leads out"),
    ],
)
def test_camera_traps_with_bad_annotations(traps, tmp_path, changes, words):
    archive, root = tmp_path / "toy.zip", tmp_path / "root"
    archive.write_bytes(zip_of(camera_traps(**changes)))
    refused(lambda: fetch("toy", root, archive=archive), words)
    assert below(root) == []


# The table


def test_the_published_sources():
    assert list(DOWNLOADS) == ["pacs", "office-home", "vlcs", "terra-incognita", "domainnet", "digits-dg", "cmnist"]
    endings = {"zip": (".zip",), "tar.gz": (".tar.gz", ".tgz"), "gz": (".gz",), "plain": (".txt",)}
    for entry in DOWNLOADS.values():
        assert len(entry.sources) >= 2
        assert all(entry.layouts)
        files = [file for one in entry.sources for file in one.files]
        assert len({file.url for file in files}) == len(files)
        for file in files:
            assert file.url.startswith(("https://", "http://csr.bu.edu/", "http://yann.lecun.com/"))
            assert direct(file.url) == file.url
            assert file.name.endswith(endings[file.unpacking])
            if file.checksum:
                length = {"sha256": 64, "md5": 32}[file.checksum.algorithm]
                assert len(bytes.fromhex(file.checksum.digest)) * 2 == length
                assert file.checksum.by
            else:
                assert not file.url.startswith("http://")
