"""The HTTP application: `POST /predict`, a web page, health and readiness checks, metrics and OpenAPI."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import psutil

from medic._version import __version__
from medic.data.decode import BadImage
from medic.deploy.predictor import Prediction, Predictor
from medic.deploy.service.batcher import Batcher, Full
from medic.deploy.service.body import Bodies, Refused, discard, split
from medic.deploy.service.guard import RETRY, STOPPING, Guard
from medic.deploy.service.limits import Limits
from medic.deploy.service.metrics import Metrics
from medic.deploy.service.page import make_page
from medic.errors import lacking, one_line
from medic.openset import Shift

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

BUSY = "the service is busy: try again later"
CLASSES = 1000
"""Maximum value of `top`: the number of classes per image in a response."""


def make_app(
    predictor: Predictor, limits: Limits | None = None, token: str | None = None, hosts: Collection[str] = ()
) -> "FastAPI":
    """Create the application for a model.

    If `token` is given, clients must send it as `Authorization: Bearer TOKEN`. The Host header must be localhost, an IP
    address or one of `hosts`, where `*` allows any host. Set `app.state.stopping` before the service stops: `/ready`
    then answers 503, and every response closes its connection.
    """
    try:
        import python_multipart  # noqa: F401, required for forms
        from fastapi import Depends, FastAPI, Query, Request
        from fastapi.exceptions import RequestValidationError
        from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
        from fastapi.security import HTTPBearer
        from starlette.exceptions import HTTPException
    except ImportError as error:
        raise lacking("the service requires fastapi, uvicorn and python-multipart", "serve") from error

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
        description="Classifies images, or labels them unknown.", separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.stopping = False
    # The guard checks the token; this dependency only documents it in the schema.
    secured = [] if token is None else [Depends(HTTPBearer(scheme_name="token", auto_error=False))]
    denied = failures(403) if token is None else failures(401, 403)

    class Unread(JSONResponse):
        """Responds before the request body has been read, then closes the connection."""

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
        "/predict", summary="Classify images", responses={**ANSWERS, **denied}, openapi_extra=BODY,
        dependencies=secured,
    )  # fmt: skip
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=CLASSES)] = 3) -> JSONResponse:
        """Classify each image, or label it unknown.

        Send one image as the request body, or several in the form field `files`. An unreadable image gets an `error`
        instead of a prediction. If no image is readable, the status is 422.
        """
        begun = time.perf_counter()
        response = await answer(request, top)
        metrics.seconds.observe(time.perf_counter() - begun)
        return response

    @app.get("/health", summary="Check that the process is alive", responses=failures(403))
    async def health() -> dict[str, str]:
        """Return `ok`. Requires no token."""
        return {"status": "ok"}

    @app.get(
        "/ready", summary="Check that the service accepts images", responses=failures(403, 503),
        response_model=dict[str, str],
    )  # fmt: skip
    async def ready() -> dict[str, str] | JSONResponse:
        """Return `ready`, or 503 while the queue is full or the service is stopping. Requires no token."""
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
        """Return request counters, latencies, queue length and drift estimates in Prometheus text format."""
        shift = await batcher.run(batcher.window.assess)
        gauges = {
            "medic_queue_images": (batcher.queued, "Images accepted but not yet answered."),
            "medic_queue_limit": (limits.queue, "Maximum number of queued images."),
            "medic_held_bytes": (bodies.held, "Bytes of request bodies held in memory."),
            "process_resident_memory_bytes": (psutil.Process().memory_info().rss, "Resident memory in bytes."),
            "process_start_time_seconds": (started, "Start time of the service, in Unix seconds."),
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


def describe(predictor: Predictor) -> dict[str, Any]:
    """Describe the model for responses. The threshold is on the scale of the scores."""
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
    """Return the drift estimates for recent images as gauges: value and help text by name."""
    return {
        "medic_recent_images": (shift.samples, "Number of recent images in the estimates below."),
        "medic_recent_accuracy": (shift.accuracy, "Estimated accuracy on recent images, if all are known."),
        "medic_recent_unknown": (shift.unknown, "Estimated share of unknown images among recent images."),
        "medic_recent_p_value": (
            shift.p_value,
            "Corrected p-value of recent images against held-out source images.",
        ),
    }


def describe_prediction(name: str, result: Prediction | BadImage, threshold: float | None) -> dict[str, Any]:
    """Describe a prediction for a response. Non-finite numbers become null, because JSON does not support them."""
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
    400: "the body is empty, or the form is malformed or contains no files", 401: "missing or invalid token",
    403: "host or origin not allowed", 408: "the request did not arrive in time", 413: "too many bytes or images",
    415: "neither an image nor a form", 500: "internal error; the message contains its number",
    503: "queue full or service stopping: try again after Retry-After seconds", 504: "no answer in time",
}  # fmt: skip


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of error responses."""
    return {status: {"description": _FAILURES[status], "content": _json(_ERROR)} for status in statuses}


ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "one prediction per image, or an error if the image is unreadable", "content": _json(_ANSWER)},
    422: {
        "description": "no image is readable, or the query is invalid",
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
