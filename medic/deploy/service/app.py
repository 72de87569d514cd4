"""The HTTP application: `POST /predict`, a page, health, readiness, metrics and OpenAPI."""

import asyncio
import hmac
import json
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import psutil

from medic._version import __version__
from medic.data.decode import BadImage
from medic.deploy.predictor import Prediction, Predictor
from medic.deploy.service.batcher import Batcher, Full
from medic.deploy.service.body import Bodies, Refused, discard, split
from medic.deploy.service.limits import Limits
from medic.deploy.service.metrics import Metrics
from medic.deploy.service.page import make_page
from medic.errors import lacking, one_line
from medic.openset import Shift

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)
access = logging.getLogger("medic.access")

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"
OPEN = ("/", "/health", "/ready")
"""Paths that need no token: the page has a field for it, and probes have none. Where a token is needed, none of
them says anything about the model."""
BUSY = "the service is busy: try again later"
STOPPING = "the service is stopping: try again later"
RETRY = 1
"""Seconds after which a client may try again."""
CLASSES = 1000
"""The most classes in an answer, per image."""
LONGEST_PATH = 200
"""Characters of a path in the access log."""


def make_app(
    predictor: Predictor, limits: Limits | None = None, token: str | None = None, hosts: Collection[str] = ()
) -> "FastAPI":
    """Return the application of a model.

    With a `token`, clients send it as `Authorization: Bearer TOKEN`. The Host header must be localhost, an address in
    numbers, or one of `hosts`; `*` allows any. Set `app.state.stopping` before the service stops: `/ready` then answers
    503, and every answer closes its connection.
    """
    try:
        import python_multipart  # noqa: F401, which forms need
        from fastapi import Depends, FastAPI, Query, Request
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
        from fastapi.security import HTTPBearer
        from starlette.exceptions import HTTPException
    except ImportError as error:
        raise lacking("the service needs fastapi, uvicorn and python-multipart", "serve") from error

    limits, metrics = limits or Limits(), Metrics()
    batcher, bodies = Batcher(predictor, limits, metrics), Bodies(limits)
    model = describe(predictor)
    about = {"classes": predictor.classes, "model": model} if token is None else {}
    page, policy = make_page({"bytes": limits.bytes, "token": token is not None, **about})
    started = time.time()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with batcher:
            yield

    app = FastAPI(
        title="medic", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="Names images, or calls them unknown.", separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.stopping = False
    # The guard checks the token; the dependency describes it in the schema.
    secured = [] if token is None else [Depends(HTTPBearer(scheme_name="token", auto_error=False))]
    denied = failures(403) if token is None else failures(401, 403)

    class Unread(JSONResponse):
        """Answers a request whose body has not been read: sends the answer at once, then closes the connection."""

        async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
            headers = [*self.raw_headers, (b"connection", b"close")]
            await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            await discard(receive)
            await send({"type": "http.response.body", "body": b""})

    def failure(status: int, message: str) -> JSONResponse:
        headers = {"retry-after": str(RETRY)} if status in (503, 504) else {}
        return JSONResponse({"error": message}, status, headers)

    async def answer(request: Request, top: int) -> JSONResponse:
        body = bytearray()
        arrived = False
        try:
            batcher.check_room(1)
            async with asyncio.timeout(limits.seconds):
                await bodies.read(request, body)
                arrived = True
                images = await batcher.run(split, body, request.headers.get("content-type", ""), limits)
                bodies.release(body)
                results = await batcher.decide([image.data for image in images], top)
        except Full:
            return failure(503, BUSY)
        except TimeoutError:
            late = f"within {limits.seconds:g} s"
            if arrived:
                return failure(504, f"no answer {late}")
            return Unread({"error": f"the request did not arrive {late}"}, 408)
        except Refused as error:
            if error.status == 413 and not arrived:
                return Unread({"error": str(error)}, 413)
            return failure(error.status, str(error))
        finally:
            bodies.release(body)
        for result in results:
            metrics.images.add("error" if isinstance(result, BadImage) else "known" if result.known else "unknown")
        predictions = [
            describe_prediction(image.name, result, model["threshold"])
            for image, result in zip(images, results, strict=True)
        ]
        bad = all(isinstance(result, BadImage) for result in results)
        return JSONResponse({"predictions": predictions, "model": model}, 422 if bad else 200)

    @app.post(
        "/predict", summary="Decide on images", responses={**ANSWERS, **denied}, openapi_extra=BODY,
        dependencies=secured,
    )  # fmt: skip
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=CLASSES)] = 3) -> JSONResponse:
        """Name each image, or call it unknown.

        Send one image as the body, or several in the field `files` of a form. An image that cannot be read has an
        `error` in its place; the status is 422 if no image can be read.
        """
        begun = time.perf_counter()
        response = await answer(request, top)
        metrics.seconds.observe(time.perf_counter() - begun)
        return response

    @app.get("/health", summary="Whether the process lives", responses=failures(403))
    async def health() -> dict[str, str]:
        """Return `ok`. Needs no token."""
        return {"status": "ok"}

    @app.get(
        "/ready", summary="Whether the service accepts images", responses=failures(403, 503),
        response_model=dict[str, str],
    )  # fmt: skip
    async def ready() -> dict[str, str] | JSONResponse:
        """Return `ready`, or 503 while the queue is full or the service stops. Needs no token."""
        if app.state.stopping:
            return failure(503, STOPPING)
        try:
            batcher.check_room(1)
        except Full:
            return failure(503, BUSY)
        return {"status": "ready"}

    @app.get(
        "/metrics", summary="Metrics for Prometheus", response_class=PlainTextResponse, responses=denied,
        dependencies=secured,
    )  # fmt: skip
    async def show_metrics() -> PlainTextResponse:
        """Return counters, latencies, the queue, and how recent images differ from the sources, as text."""
        shift = await batcher.run(batcher.window.assess)
        gauges = {
            "medic_queue_images": (batcher.queued, "Images that were accepted and are not answered."),
            "medic_queue_limit": (limits.queue, "Images that can be queued."),
            "medic_held_bytes": (bodies.held, "Bytes of request bodies in memory."),
            "process_resident_memory_bytes": (psutil.Process().memory_info().rss, "Resident memory."),
            "process_start_time_seconds": (started, "Start of the service, in seconds since 1970."),
            **({} if shift is None else shift_gauges(shift)),
        }
        return PlainTextResponse(metrics.text(gauges), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_query(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return JSONResponse({"error": one_line(f"{first['loc'][-1]}: {first['msg']}")}, 422)

    app.add_middleware(Guard, metrics=metrics, state=app.state, token=token, hosts=frozenset(hosts))
    return app


class Guard:
    """Checks host, origin and token before anything is read, and logs every answer.

    For an unexpected error, the client receives an error number and no details.
    """

    def __init__(
        self, app: "ASGIApp", metrics: Metrics, state: "State", token: str | None, hosts: Collection[str]
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.state = state
        self.token = None if token is None else token.encode()
        self.hosts = hosts

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer a request."""
        from starlette.requests import ClientDisconnect

        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = time.perf_counter()
        begun = False

        async def sending(message: "Message") -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self.metrics.requests.add(str(message["status"]))
                _log(scope, str(message["status"]), started)
                present = {name for name, _ in message["headers"]}
                own = {"content-security-policy": NO_CONTENT, **HEADERS}
                if self.state.stopping:  # so that the client sends its next request elsewhere
                    own["connection"] = "close"
                missing = [
                    (name.encode(), value.encode()) for name, value in own.items() if name.encode() not in present
                ]
                message = {**message, "headers": [*message["headers"], *missing]}
            await send(message)

        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if problem := self._problem(scope["path"], headers):
            return await _send(sending, *problem)
        try:
            await self.app(scope, receive, sending)
        except ClientDisconnect:  # while its request was read
            _log(scope, "-", started)
        except asyncio.CancelledError:  # the service stops, and the request has had its time
            if not begun:
                await _send(sending, 503, STOPPING)
        except Exception:  # a client learns nothing of what is inside
            number = uuid.uuid4().hex[:12]
            logger.exception("error %s", number)
            if not begun:
                await _send(sending, 500, f"internal error {number}; the log of the service has its reason")
        return None

    def _problem(self, path: str, headers: Mapping[bytes, str]) -> tuple[int, str] | None:
        """Return the status and the message for a request that is not allowed."""
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._allowed(host):
            return 403, f"host {_quoted(host)} is not allowed: start the service with --allowed-hosts NAME"
        if origin is not None and not _is_own(origin, host, headers.get(b"sec-fetch-site")):
            way = "behind a proxy, let it pass on the Host header"
            return 403, f"pages from {_quoted(origin)} may not use this service; {way}"
        if self.token is not None and path not in OPEN:
            kind, _, sent_token = headers.get(b"authorization", "").partition(" ")
            right = hmac.compare_digest(sent_token.strip().encode("latin-1"), self.token)
            if kind.lower() != "bearer" or not right:
                return 401, "send the token of the service as `Authorization: Bearer TOKEN`"
        return None

    def _allowed(self, host: str) -> bool:
        """Whether a Host header names us: a page that rebinds its own name to our address has another one."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None:
            return False
        return "*" in self.hosts or name == "localhost" or name in self.hosts or _is_number(name)


def _is_own(origin: str, host: str, site: str | None) -> bool:
    """Whether a request comes from the service's own page.

    Where a browser sends Sec-Fetch-Site, it has compared the origins itself, and a proxy that changes Host does not
    matter. Otherwise Origin and Host must have the same name and port. The scheme cannot be compared: a proxy may end
    TLS.
    """
    if site is not None:
        return site == "same-origin"
    try:
        page, own = urlsplit(origin), urlsplit(f"//{host}")
        usual = {"http": 80, "https": 443}.get(page.scheme)
        return (page.hostname, page.port or usual) == (own.hostname, own.port or usual)
    except ValueError:
        return False


def _log(scope: "Scope", status: str, started: float) -> None:
    """Add a line to the access log: no query and no header, which may have secrets."""
    client = scope["client"][0] if scope.get("client") else "-"
    path = quote(scope["path"], errors="replace")[:LONGEST_PATH]
    access.info(
        "%s %s %s %s %.1f ms", client, scope["method"][:20], path, status, 1000 * (time.perf_counter() - started)
    )


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _quoted(text: str) -> str:
    return one_line(repr(text[:100]))


async def _send(send: "Send", status: int, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", str(RETRY).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def describe(predictor: Predictor) -> dict[str, Any]:
    """Return what an answer says of the model; the threshold is on the scale of the scores."""
    threshold, score = predictor.threshold, predictor.score
    return {
        "score": score.name,
        "probability": score.probability,
        "threshold": _finite(predictor.display_threshold),
        "rule": threshold.rule,
        "classes": len(predictor.classes),
        "sha256": predictor.description.get("sha256"),
        "medic": __version__,
    }


def shift_gauges(shift: Shift) -> dict[str, tuple[float, str]]:
    """Return the comparison of the most recent images as gauges: a value and its help text by name."""
    return {
        "medic_recent_images": (shift.samples, "The most recent images, which the values below describe."),
        "medic_recent_accuracy": (shift.accuracy, "Their estimated accuracy, if all are of known classes."),
        "medic_recent_unknown": (shift.unknown, "Their estimated share of unknown images."),
        "medic_recent_p_value": (shift.p_value, "P-value of two-sample tests against held-out source images."),
    }


def describe_prediction(name: str, result: Prediction | BadImage, threshold: float | None) -> dict[str, Any]:
    """Return an entry of an answer; a number that is not finite is null, because JSON has none."""
    if isinstance(result, BadImage):
        return {"name": name, "error": one_line(str(result))}
    return {
        "name": name,
        "label": result.label,
        "known": result.known,
        "score": _finite(result.score),
        "threshold": threshold,
        "p_value": result.p_value,
        "top": [{"class": label, "probability": _finite(value)} for label, value in result.top],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_TEXT, _NUMBER = {"type": "string"}, {"type": ["number", "null"]}
_BINARY = {"type": "string", "format": "binary"}
_TOP = {"type": "array", "items": _object(**{"class": _TEXT, "probability": _NUMBER})}
_DECISION = _object(
    name=_TEXT, label=_TEXT, known={"type": "boolean"}, score=_NUMBER, threshold=_NUMBER, p_value=_NUMBER, top=_TOP,
)  # fmt: skip
_PREDICTION = {"anyOf": [_DECISION, _object(name=_TEXT, error=_TEXT)]}
_MODEL = _object(
    score=_TEXT, probability={"type": "boolean"}, threshold=_NUMBER, rule=_TEXT, classes={"type": "integer"},
    sha256={"type": ["string", "null"]}, medic=_TEXT,
)  # fmt: skip
_ANSWER = _object(predictions={"type": "array", "items": _PREDICTION}, model=_MODEL)
_ERROR = _object(error=_TEXT)
_FAILURES = {
    400: "the body is empty, or the form is damaged or has no file", 401: "the token is missing or wrong",
    403: "host or origin not allowed", 408: "the request did not arrive in time", 413: "too many bytes or images",
    415: "not an image and not a form", 500: "a fault; the message has its number",
    503: "the queue is full, or the service stops: try again after Retry-After seconds", 504: "no answer in time",
}  # fmt: skip


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe answers with an error of one line."""
    return {status: {"description": _FAILURES[status], "content": _json(_ERROR)} for status in statuses}


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "a prediction per image; one that cannot be read has an error", "content": _json(_ANSWER)},
    422: {
        "description": "no image can be read, or the query is wrong",
        "content": _json({"anyOf": [_ANSWER, _ERROR]}),
    },
    **failures(400, 408, 413, 415, 500, 503, 504),
}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": _object(files={"type": "array", "items": _BINARY})},
            "image/*": {"schema": _BINARY},
            "application/octet-stream": {"schema": _BINARY},
        },
    }
}
