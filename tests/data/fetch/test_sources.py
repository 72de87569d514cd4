"""Several sources, web pages in place of files, and the published table."""

import hashlib
import shutil
import socket
from dataclasses import replace

import pytest

from medic.data import download
from medic.data.download import address_hash
from medic.data.fetch import RECORDS, fetch
from medic.data.sources import DOWNLOADS, Checksum, direct
from tests.data.fetch.archives import PACKED, TREE, Log, below, records, refused, source, tar_of, tree, zip_of


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
    assert records(tmp_path)["checksums"] == {address_hash(url): hashlib.sha256(content).hexdigest()}


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
