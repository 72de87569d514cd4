"""The service as a Ray Serve deployment, with replicas on the machines of a cluster."""

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from medic.deploy.service.limits import Limits
from medic.errors import lacking


def make_deployment(
    path: Path, device: str, limits: Limits, token: str | None, hosts: Sequence[str], replicas: int
) -> Any:
    """Return the application for `ray.serve.run`. Every replica loads the model from `path`, a shared folder."""
    serve = _serve()

    def build() -> Any:
        from medic.deploy.predictor import load
        from medic.deploy.service.app import make_app

        return make_app(load(path, device), limits, token, hosts)

    deployment = serve.deployment(
        name="medic", num_replicas=replicas, max_ongoing_requests=limits.queue, max_queued_requests=limits.queue,
        ray_actor_options={"num_gpus": 1 if device == "cuda" else 0},
    )  # fmt: skip
    return deployment(serve.ingress(build)()).bind()


def run(application: Any, host: str, port: int, ready: Callable[[], None]) -> None:
    """Serve on the connected Ray cluster until SIGTERM or SIGINT."""
    serve = _serve()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        serve.start(http_options={"host": host, "port": port})
        serve.run(application, name="medic", route_prefix="/")
        ready()
        stopped.wait()
    finally:
        serve.delete("medic")  # replicas finish accepted requests; other applications keep running


def _serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise lacking("--ray requires ray[serve]", "ray-serve") from error
    return serve
