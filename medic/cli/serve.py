"""`medic serve`."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from medic.api import serve
from medic.cli.options import (
    add_device_option,
    add_force_option,
    add_import_option,
    count,
    execute_imports,
    number,
)
from medic.deploy.service.limits import Limits
from medic.deploy.service.server import check_access
from medic.errors import MedicError
from medic.runs.opening import open_model
from medic.utils.logs import log_output
from medic.utils.parts import Limits as Range

TOKEN = "MEDIC_TOKEN"
PORTS = Range(0, 2**16 - 1)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic serve`."""
    parser.add_argument("run", metavar="RUN", help="directory of a finished run, or of a model")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="HOST",
        help="address to listen on; others than this machine need a token (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=number(int, PORTS),
        default=8000,
        metavar="PORT",
        help="port to listen on, 0 for any free one (default: 8000)",
    )
    add_device_option(parser, default="auto")
    add_import_option(parser)
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help=f"secret that clients send, required beyond this machine (default: environment variable {TOKEN})",
    )
    parser.add_argument(
        "--allowed-hosts", action="extend", nargs="*", default=[], metavar="NAME",
        help="names by which clients address the service, * for any (default: localhost, addresses in numbers, --host)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="images in a forward pass (default: 32)"
    )
    parser.add_argument(
        "--wait-ms",
        type=float,
        default=5,
        metavar="MS",
        help="longest wait for images that are being decoded (default: 5)",
    )
    parser.add_argument("--queue", type=int, default=256, metavar="N", help="images waiting before 503 (default: 256)")
    parser.add_argument(
        "--max-bytes", type=int, default=2**25, metavar="N", help="bytes of a request (default: 33554432)"
    )
    parser.add_argument("--max-files", type=int, default=64, metavar="N", help="images of a request (default: 64)")
    parser.add_argument(
        "--max-pixels", type=int, default=50_000_000, metavar="N", help="pixels of an image (default: 50000000)"
    )
    parser.add_argument("--timeout", type=float, default=30, metavar="S", help="seconds of a request (default: 30)")
    parser.add_argument("--quiet", action="store_true", help="show only warnings, and no access log")
    add_force_option(parser)
    parser.add_argument("--ray", action="store_true", help="serve as a Ray Serve deployment")
    parser.add_argument(
        "--replicas", type=count, metavar="N", help="for --ray: processes that hold the model (default: 1)"
    )
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="for --ray: cluster to join (default: a Ray of this machine)"
    )


def run(arguments: Namespace) -> int:
    """Serve a model until the process is asked to stop."""
    limits = Limits(
        bytes=arguments.max_bytes, files=arguments.max_files, pixels=arguments.max_pixels, seconds=arguments.timeout,
        queue=arguments.queue, batch_size=arguments.batch_size, wait=arguments.wait_ms / 1000,
    )  # fmt: skip
    token = os.environ.get(TOKEN) if arguments.token is None else arguments.token
    for name in ("replicas", "address"):
        if getattr(arguments, name) is not None and not arguments.ray:
            raise MedicError(f"--{name} is only used with --ray: add --ray, or leave out --{name}")
    with log_output(arguments.quiet):
        if arguments.ray:
            _serve_on_ray(arguments, limits, token)
            return 0
        execute_imports(arguments)
        serve(
            arguments.run,
            host=arguments.host,
            port=arguments.port,
            device=arguments.device,
            token=token,
            allowed_hosts=arguments.allowed_hosts,
            limits=limits,
            force=arguments.force,
        )
    return 0


def _serve_on_ray(arguments: Namespace, limits: Limits, token: str | None) -> None:
    if arguments.imports:
        raise MedicError("--import does not reach the processes of --ray: install the code as a package")
    check_access(arguments.host, token)
    predictor, _ = open_model(arguments.run, arguments.device, arguments.force)
    predictor.warm_up()
    from medic.sweeps.executors.ray import connect

    replicas = 1 if arguments.replicas is None else arguments.replicas
    # Ray counts a core for each replica, its controller and its proxy.
    connect(arguments.address, None, max(os.cpu_count() or 1, replicas + 2))
    from medic.deploy.service.ray import make_deployment, run

    hosts = [arguments.host.lower(), *map(str.lower, arguments.allowed_hosts)]
    device, path = predictor.device.type, Path(arguments.run).resolve()
    deployment = make_deployment(path, device, limits, token, hosts, replicas)
    address = f"http://{arguments.host}:{arguments.port}"
    run(deployment, arguments.host, arguments.port, lambda: print(f"serving {arguments.run} at {address}", flush=True))
