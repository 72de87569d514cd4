"""Downloading: cuts, changes, mirrors, checksums, redirections."""

import gzip
import hashlib
import os
from urllib.request import Request

import pytest

from medic.data import download, unpack
from medic.data.download import address_hash
from medic.data.fetch import fetch
from medic.data.sources import File, Source
from tests.data.fetch.archives import PACKED, TREE, Log, below, records, refused, source, tar_of, tree, zip_of


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
    assert records(folder.parent) == {
        "checksums": {address_hash(url): hashlib.sha256(content).hexdigest()},
        "partial": {},
    }


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
