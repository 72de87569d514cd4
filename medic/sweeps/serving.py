"""The prediction service as a Ray Serve deployment on a cluster."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from medic.deploy.service.limits import Limits
from medic.deploy.service.ray import make_deployment, run
from medic.sweeps.executors.ray import connect


def serve_on_ray(
    path: Path,
    host: str,
    port: int,
    device: torch.device,
    limits: Limits | None,
    token: str | None,
    hosts: Sequence[str],
    replicas: int,
    cluster: str | None,
) -> None:
    """Serve the model in a folder with `replicas` processes on a Ray cluster, until SIGTERM or SIGINT."""
    # Ray reserves one core each for the replicas, its controller and its proxy.
    connect(cluster, None, max(os.cpu_count() or 1, replicas + 2))
    deployment = make_deployment(path.resolve(), device.type, limits or Limits(), token, hosts, replicas)
    run(deployment, host, port, lambda: print(f"serving {path} at http://{host}:{port}", flush=True))
