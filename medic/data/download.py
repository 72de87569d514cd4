"""Download a file over HTTP(S) or from Google Drive, with a progress bar. Interrupted downloads resume."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from medic.errors import first_line
from medic.utils.logs import console

logger = logging.getLogger(__name__)

TIMEOUT = 30.0  # seconds to wait for the next byte
RETRIES = 3  # after a connection fails
LINE_EVERY = 10.0  # seconds between progress lines if the output is not a terminal


class Unusable(Exception):
    """The download or archive is unusable; another mirror may work."""


def download_file(url: str, path: Path, name: str) -> None:
    """Download a file to `path` unless it is already complete. `name` appears in the progress bar."""
    import gdown  # imported late: gdown and requests take 0.2 s
    import requests

    partial = list(path.parent.glob(f"{path.name}*.part"))
    with _progress(name) as advance:
        try:
            gdown.download(
                url, str(path), quiet=True, use_cookies=False, resume=True, timeout=TIMEOUT, retries=RETRIES,
                progress=advance,
            )  # fmt: skip
            return
        except (gdown.DownloadError, requests.RequestException) as error:
            # An error without a network cause means that the server cannot resume the partial file.
            if not partial or not isinstance(error, gdown.DownloadError) or error.__cause__ is not None:
                raise Unusable(_reason(error)) from error
    partial[0].unlink()
    download_file(url, path, name)


def _reason(error: Exception) -> str:
    """Return why a download failed, without the URL, which may contain a secret."""
    import gdown
    import requests

    if isinstance(error, gdown.FileURLRetrievalError):
        return "Google Drive refused the download: the file is private, or its download quota is exceeded"
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    if isinstance(cause, OSError) and cause.strerror:
        return f"connection failed ({cause.strerror})"
    return first_line(error) if isinstance(error, gdown.DownloadError) else type(error).__name__


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback `(done, total)` in bytes that updates a progress bar or logs a line every few seconds."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), disable=not console().is_terminal) as bar:
        task, last = bar.add_task(name, total=None), time.monotonic()

        def advance(done: int, total: int | None) -> None:
            nonlocal last
            bar.update(task, completed=done, total=total)
            if bar.disable and time.monotonic() - last > LINE_EVERY:
                last = time.monotonic()
                logger.info("%s: %.0f MB%s", name, done / 1e6, "" if total is None else f" of {total / 1e6:.0f}")

        yield advance
