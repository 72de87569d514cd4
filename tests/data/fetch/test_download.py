"""Downloads: resumed and retried transfers, mirrors, checksums, addresses."""

import gzip
import hashlib
import os
import shutil
import socket
import sys
from contextlib import contextmanager

import pytest

from medic.data import BENCHMARKS
from medic.data import download as module
from medic.data.benchmarks.base import File, keyed_drive
from medic.data.fetch import RECORDS, fetch
from tests.data.fetch.archives import PACKED, TREE, below, checksums, files, refused, tar_of, tree, zip_of


def address_hash(url):
    return hashlib.sha256(url.encode()).hexdigest()


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_fetched_with_progress(site, toy, tmp_path, monkeypatch, logged):
    content = zip_of({f"wrapped/up/{name}": data for name, data in TREE.items()})
    url = site.put("/toy.zip", content)
    monkeypatch.setattr(module, "LINE_EVERY", -1.0)
    folder = fetch(toy(files(url)), tmp_path / "new" / "root")
    assert folder == tmp_path / "new" / "root" / "toy"
    assert tree(folder) == TREE
    assert any("has no published checksum" in line for line in logged.messages)
    assert "toy.zip: 0 MB of 0" in logged.messages
    assert below(folder.parent) == ["toy"]
    assert checksums(folder.parent) == {address_hash(url): sha256(content)}


def test_a_bar_on_a_terminal(site, toy, tmp_path, monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr(module, "console", lambda: Console(stderr=True, force_terminal=True, width=100))
    fetch(toy(files(site.put("/toy.zip", PACKED))), tmp_path)
    bar = capsys.readouterr().err
    assert "toy.zip" in bar
    assert f"{len(PACKED) / 1000:.1f}/{len(PACKED) / 1000:.1f} kB" in bar


def test_a_connection_that_breaks_is_resumed(site, toy, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RETRIES", 3)
    bench = toy(files(site.put("/toy.zip", PACKED, cuts=[20_480, 8192])))
    assert tree(fetch(bench, tmp_path)) == TREE
    assert site.header("Range") == [None, "bytes=20480-", "bytes=28672-"]


def test_the_next_call_resumes(site, toy, tmp_path):
    bench = toy(files(site.put("/toy.zip", PACKED, cuts=[20_480])))
    refused(lambda: fetch(bench, tmp_path), "127.0.0.1: Download is incomplete: received 20480 bytes")
    assert below(tmp_path) == [".toy.download"]
    assert tree(fetch(bench, tmp_path)) == TREE
    assert site.header("Range")[-1] == "bytes=20480-"
    assert below(tmp_path) == ["toy"]


def test_an_interrupted_download_resumes(site, toy, tmp_path, monkeypatch):
    @contextmanager
    def interrupted(name):
        def advance(done, total):
            if done >= 10_000:
                raise KeyboardInterrupt

        yield advance

    bench = toy(files(site.put("/toy.zip", PACKED)))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_progress", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(bench, tmp_path)
    assert tree(fetch(bench, tmp_path)) == TREE
    assert site.header("Range")[-1] == "bytes=12288-"
    assert below(tmp_path) == ["toy"]


def test_a_server_that_cannot_resume(site, toy, tmp_path):
    bench = toy(files(site.put("/toy.zip", PACKED, cuts=[20_480], ranges=False)))
    refused(lambda: fetch(bench, tmp_path), "incomplete")
    assert tree(fetch(bench, tmp_path)) == TREE


def test_complete_files_are_not_downloaded_again(site, toy, tmp_path):
    urls = [site.put(f"/{domain}.zip", zip_of({f"{domain}/cat/0.jpg": os.urandom(9000)})) for domain in "ab"]
    bench = toy(files(*urls))
    site.pages["/b.zip"].statuses.append(503)
    refused(lambda: fetch(bench, tmp_path), "HTTP 503")
    fetch(bench, tmp_path)
    bodies = [path for path, headers in site.requests]
    assert bodies.count("/b.zip") == 2
    assert below(tmp_path) == ["toy"]


def test_several_files_of_several_kinds(site, toy, tmp_path):
    mirror = (
        File(site.put("/list", b"a/cat/0.jpg 0\n", type="text/plain"), "list.txt", into="splits"),
        File(site.put("/a.zip", zip_of({"a/cat/0.jpg": b"A"}))),
        File(site.put("/b.tgz", tar_of({"b/cat/0.jpg": b"B"}))),
        File(site.put("/idx.gz", gzip.compress(b"IDX"))),
    )
    folder = fetch(toy(mirror), tmp_path)
    assert tree(folder) == {
        "a/cat/0.jpg": b"A",
        "b/cat/0.jpg": b"B",
        "idx": b"IDX",
        "splits/list.txt": b"a/cat/0.jpg 0\n",
    }


def test_a_dead_mirror_then_a_good_one(site, toy, tmp_path, logged):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}/toy.zip"
        bench = toy(files(dead), files(site.put("/gone.zip", status=404)), files(site.put("/toy.zip", PACKED)))
        assert tree(fetch(bench, tmp_path)) == TREE
    assert any("connection failed (Connection refused)" in line for line in logged.messages)
    assert any("HTTP 404" in line for line in logged.messages)


def test_two_mirrors_do_not_share_a_partial_file(site, toy, tmp_path):
    cut = site.put("/1/toy.zip", os.urandom(50_000), cuts=[8192])
    bench = toy(files(cut), files(site.put("/2/toy.zip", PACKED)))
    assert tree(fetch(bench, tmp_path)) == TREE
    assert site.header("Range") == [None, None]
    assert below(tmp_path) == ["toy"]


def test_all_mirrors_dead(site, toy, tmp_path):
    bench = toy(*(files(site.put(f"/{i}.zip", status=code)) for i, code in enumerate((404, 403))))
    refused(
        lambda: fetch(bench, tmp_path),
        f"copy <domain>/<class>/<image> for a and b into {tmp_path / 'toy'}",
        "127.0.0.1: HTTP 404 Not Found; 127.0.0.1: HTTP 403 Forbidden",
        "--archive",
        "http://page",
    )


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_published_checksums(site, toy, tmp_path, algorithm):
    checksum = f"{algorithm}:{hashlib.new(algorithm, PACKED).hexdigest()}"
    bad = files(site.put("/bad.zip", zip_of({"a/x": b"", "b/x": b""})), checksum=checksum)
    refused(lambda: fetch(toy(bad), tmp_path), "checksum mismatch for bad.zip", checksum, "(published)")
    good = files(site.put("/toy.zip", PACKED), checksum=checksum)
    assert tree(fetch(toy(bad, good), tmp_path)) == TREE
    assert below(tmp_path) == ["toy"]
    assert checksums(tmp_path) == {}


def test_a_recorded_checksum_is_compared(site, toy, tmp_path):
    url = site.put("/toy.zip", PACKED)
    bench = toy(files(url))
    for _ in range(2):
        shutil.rmtree(fetch(bench, tmp_path))
    site.put("/toy.zip", zip_of({**TREE, "b/more": b""}))
    refused(lambda: fetch(bench, tmp_path), sha256(PACKED), f"recorded in {tmp_path / RECORDS}")
    assert checksums(tmp_path) == {address_hash(url): sha256(PACKED)}


def test_a_file_that_cannot_be_unpacked_is_not_trusted(site, toy, tmp_path):
    contents = {"/toy.zip": b"PK\x03\x04 no more", "/other.zip": zip_of({"c/x": b""})}
    bench = toy(*(files(site.put(path, content)) for path, content in contents.items()))
    refused(lambda: fetch(bench, tmp_path), "toy.zip is damaged", "expected a folder that contains a, b")
    assert checksums(tmp_path) == {}
    assert list((tmp_path / ".toy.download").iterdir()) == []


def test_a_web_page_instead_of_an_archive(site, toy, tmp_path):
    url = site.put("/toy.zip", b"\n<!doctype html><title>Please log in</title>", type="text/html")
    refused(lambda: fetch(toy(files(url)), tmp_path), "toy.zip is a web page")


def test_redirections(site, toy, tmp_path):
    here = site.put("/here", status=302, headers={"Location": site.put("/there", PACKED)})
    assert tree(fetch(toy(files(here)), tmp_path)) == TREE
    round_trip = site.put("/round", status=302, headers={"Location": "/round"})
    refused(lambda: fetch(toy(files(round_trip)), tmp_path / "other"), "TooManyRedirects")


def test_a_url_of_your_own_is_not_kept(site, toy, tmp_path, logged):
    url = site.put("/mine?signature=secret", tar_of(TREE))
    site.pages["/mine?signature=secret"].statuses.append(403)
    message = refused(lambda: fetch(toy(), tmp_path, url=url), "HTTP 403")
    assert tree(fetch(toy(), tmp_path, url=url)) == TREE
    assert list(checksums(tmp_path)) == [address_hash(url)]
    assert not any("secret" in line for line in (message, *logged.messages))
    assert not any(b"secret" in content or "secret" in name for name, content in tree(tmp_path).items())


def test_links_to_google_drive(toy, tmp_path, monkeypatch):
    urls = []

    def download(url, path, **options):
        urls.append(url)
        raise sys.modules["gdown"].FileURLRetrievalError("Failed to retrieve file url:\n\nsecret")

    monkeypatch.setattr("gdown.download", download)
    plain = "https://drive.google.com/file/d/A_b-1/view"
    message = refused(lambda: fetch(toy(), tmp_path, url=plain), "drive.google.com: Google Drive refused the download")
    assert "secret" not in message
    for link in (f"{plain}?resourcekey=0-k", "https://drive.google.com/open?id=A_b-1&resourcekey=0-k"):
        refused(lambda link=link: fetch(toy(), tmp_path, url=link))
    assert urls == [plain, *[keyed_drive("A_b-1", "0-k")] * 2]


def test_the_published_sources():
    downloads = {name: bench.download for name, bench in BENCHMARKS.items() if bench.download}
    assert list(downloads) == ["pacs", "office-home", "vlcs", "terra-incognita", "domainnet", "digits-dg", "cmnist"]
    for download in downloads.values():
        assert len(download.mirrors) >= 2
        published = [file for mirror in download.mirrors.values() for file in mirror]
        assert len({file.url for file in published}) == len(published)
        for file in published:
            assert file.url.startswith(("https://", "http://csr.bu.edu/", "http://yann.lecun.com/"))
            assert file.file_name.endswith((".zip", ".tar.gz", ".tgz", ".gz", ".txt"))
            assert file.checksum or file.url.startswith("https://")
            if file.checksum:
                algorithm, digest = file.checksum.split(":")
                assert len(digest) == {"sha256": 64, "md5": 32}[algorithm]
