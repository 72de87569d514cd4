"""A server, and a benchmark to fetch from it."""

import logging
import sys

import gdown  # noqa: F401, imports the module that is patched below
import pytest

from medic.data import Benchmark, download
from medic.data.benchmarks.base import Download, Layout
from tests.data.fetch.site import Site


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    monkeypatch.setattr(download, "RETRIES", 0)
    monkeypatch.setattr(sys.modules["gdown.download"], "CHUNK_SIZE", 4096)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)  # gdown waits as long before it retries
    site = Site()
    yield site
    site.close()


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, logger="medic.data")
    return caplog


@pytest.fixture
def toy():
    """Make a benchmark with the domains a and b from mirrors, each a tuple of files."""

    def make(*mirrors, **options):
        documented = {f"page {i}": files for i, files in enumerate(mirrors)}
        sources = Download(documented, "http://page", "<domain>/<class>/<image> for a and b", **options)
        layouts = (Layout("folders", ()),)
        return Benchmark(
            name="toy", description="", reader=lambda *_: None, domains=("a", "b"), layouts=layouts, download=sources
        )

    return make
