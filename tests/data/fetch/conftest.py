"""The server and a benchmark of one's own."""

import pytest

from medic.data import download, unpack
from medic.data.sources import DOWNLOADS, Download
from tests.data.fetch.archives import LIMITS
from tests.data.fetch.site import Site


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


@pytest.fixture
def toy(monkeypatch):
    """Make `toy` a benchmark with the given sources."""

    def make(*sources, limits=LIMITS):
        download = Download(sources, (("a", "b"),), "<domain>/<class>/<image> for a and b", "http://page", limits)
        monkeypatch.setitem(DOWNLOADS, "toy", download)

    make()
    return make
