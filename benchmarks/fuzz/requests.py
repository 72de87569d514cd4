"""Damaged and hostile requests to the service: headers, queries, forms and images."""

import asyncio
import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.fuzz.damage import damage
from benchmarks.fuzz.harness import Door, Fault
from benchmarks.fuzz.images import make_image, originals
from benchmarks.fuzz.model import bases, image

BOUNDARY = b"x1x"
KINDS = (
    b"", b"image/png", b"image/x", b"application/octet-stream", b"text/plain", b"multipart/form-data",
    b"multipart/form-data; boundary=x1x", b"multipart/form-data; boundary=\"x1x\"", b"multipart/form-data; boundary=",
    b"multipart/form-data; boundary=" + b"y" * 500, b"multipart/form-data; boundary=x1x; boundary=y",
    b"multipart/mixed; boundary=x1x", b"\xff\xfe", b"image/png\r\nx: y", b"MULTIPART/FORM-DATA;BOUNDARY=x1x", b";;;=",
)  # fmt: skip
PARTS = (
    b'Content-Disposition: form-data; name="files"; filename="a.png"\r\n',
    b'Content-Disposition: form-data; name="x"\r\n',
    b'Content-Disposition: form-data; name="files"; filename="../../x"\r\n', b"Content-Disposition: form-data\r\n", b"",
    b'Content-Disposition: form-data; name="files"; filename*=utf-8\'\'%ff%00\r\n', b"X: " + b"y" * 9000 + b"\r\n",
    b'Content-Disposition: form-data; name="files"; filename="\x1b[2J\xff\0\n"\r\n', b": \r\n", b"\0: \0\r\n", b"x\r\n",
    b'Content-Disposition: form-data; name="files"; filename="' + b"n" * 5000 + b'"\r\n', b"Content-Length: -1\r\n",
)  # fmt: skip
QUERIES = (b"", b"top=1", b"top=0", b"top=-1", b"top=1000", b"top=1001", b"top=x", b"top=" + b"9" * 5000,
           b"top=1&top=2", b"top=%00", b"%ff", b"x=y", b"top=1e3", b"top=")  # fmt: skip
HEADERS = (
    (b"content-length", b"5"), (b"content-length", b"-1"), (b"content-length", b"9" * 30), (b"host", b"evil.example"),
    (b"origin", b"http://evil.example"), (b"origin", b"null"), (b"expect", b"100-continue"), (b"host", b"["),
    (b"transfer-encoding", b"chunked"), (b"authorization", b"Bearer \xff"), (b"x", b"\0"), (b"host", b""),
    (b"origin", b"http://[:x"), (b"origin", b"http://localhost:x"), (b"sec-fetch-site", b"\xff"),
)  # fmt: skip
STATUSES = (200, 400, 403, 404, 405, 413, 415, 422)


def make_form(draw: random.Random) -> bytes:
    """Return a form of a few parts, mostly good ones."""
    parts = []
    for _ in range(draw.choice((0, 1, 1, 2, 3, 12))):
        head = PARTS[0] if draw.random() < 0.7 else draw.choice(PARTS)
        content = image() if draw.random() < 0.5 else make_image(draw)
        parts.append(b"--" + BOUNDARY + b"\r\n" + head + b"\r\n" + content + b"\r\n")
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


@functools.cache
def service() -> tuple[Any, ...]:
    """Return the application of a small model with low limits, its event loop, and what keeps it running."""
    import medic
    from medic.deploy.service import Limits
    from medic.deploy.service.app import make_app

    described, weights = bases()[0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(weights)
        (Path(folder) / "model.json").write_text(json.dumps(described))
        predictor = medic.load(folder)
    torch.set_num_threads(1)
    app = make_app(predictor, Limits(bytes=20_000, files=8, pixels=10**6, seconds=5, queue=16, wait=0))
    loop = asyncio.new_event_loop()
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())
    return app, loop, lifespan


def prepare(folder: Path) -> None:
    """Send a good request."""
    assert _send(b"POST", "/predict", b"", [(b"host", b"localhost"), (b"content-type", b"image/png")], [image()]) == 200


def prepare_child() -> None:
    """Start the service, and make the images that are damaged."""
    service()
    originals()


def attempt(folder: Path, draw: random.Random) -> bool:
    """Send a request; the answer is a prediction or an error of one line."""
    form = draw.random() < 0.6
    kind = (KINDS[6] if form else KINDS[1]) if draw.random() < 0.7 else draw.choice(KINDS)
    body = make_form(draw) if form else make_image(draw)
    if draw.random() < 0.5:
        body = damage(body, draw)
    if draw.random() < 0.02:
        body *= draw.choice((2, 10, 40))
    cuts = sorted(draw.randrange(len(body) + 1) for _ in range(draw.choice((0, 0, 1, 3))))
    chunks = [body[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    headers = [(b"host", b"localhost"), (b"content-type", kind)]
    if draw.random() < 0.15:
        headers.append(draw.choice(HEADERS))
    query = draw.choice(QUERIES) if draw.random() < 0.2 else b""
    others = ("/", "/../x", "/predict/", "/metrics", "/\0", "/health", "/ready")
    path = "/predict" if draw.random() < 0.98 else draw.choice(others)
    method = b"POST" if draw.random() < 0.98 else draw.choice((b"GET", b"PUT", b"X", b"OPTIONS"))
    return _send(method, path, query, headers, chunks) == 200


def _send(method: bytes, path: str, query: bytes, headers: list[tuple[bytes, bytes]], chunks: list[bytes]) -> int:
    """Hand a request to the application; return the status of its answer."""
    app, loop, _ = service()
    left, sent = list(chunks), []

    async def receive() -> dict[str, Any]:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method.decode(), "path": path,
        "raw_path": path.encode(), "query_string": query, "headers": headers, "scheme": "http", "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
    }  # fmt: skip
    loop.run_until_complete(app(scope, receive, send))
    status, body = sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])
    if status not in STATUSES and not (status == 307 and path == "/predict/"):
        raise Fault(f"status {status}: {body[:120]!r}")
    if path == "/predict":
        answer = json.loads(body, parse_constant=lambda name: 1 / 0)
        if "error" in answer and (not isinstance(answer["error"], str) or "\n" in answer["error"]):
            raise Fault(f"an error that is not a line: {body[:120]!r}")
        if status == 200 and not all("label" in one or "error" in one for one in answer["predictions"]):
            raise Fault(f"an answer without a label: {body[:120]!r}")
    return int(status)


DOOR = Door("requests", prepare, attempt, 10_000, prepare_child)
