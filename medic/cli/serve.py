"""The `medic serve` command."""

from argparse import ArgumentParser, Namespace

from medic.api.models import serve
from medic.cli.options import add_device_option, add_force_option, add_import_option, count, number
from medic.deploy.service.limits import Limits
from medic.utils.logs import log_output
from medic.utils.parts import Limits as Range

PORTS = Range(0, 2**16 - 1)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic serve`."""
    parser.add_argument("run", metavar="RUN", help="finished run directory or saved model")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="HOST",
        help="address to listen on; anything but localhost requires a token (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=number(int, PORTS),
        default=8000,
        metavar="PORT",
        help="port to listen on; 0 picks a free port (default: 8000)",
    )
    add_device_option(parser, default="auto")
    add_import_option(parser)
    parser.add_argument(
        "--token",
        metavar="TOKEN",
        help="secret that clients must send (default: the environment variable MEDIC_TOKEN)",
    )
    parser.add_argument(
        "--allowed-hosts", action="extend", nargs="*", default=[], metavar="NAME",
        help="host names that clients may use; * allows any (default: localhost, IP addresses and --host)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="maximum images per forward pass (default: 32)"
    )
    parser.add_argument(
        "--wait-ms",
        type=float,
        default=5,
        metavar="MS",
        help="maximum time that a batch waits for images being decoded, in milliseconds (default: 5)",
    )
    parser.add_argument(
        "--queue",
        type=int,
        default=256,
        metavar="N",
        help="maximum number of queued images; further requests get status 503 (default: 256)",
    )
    parser.add_argument(
        "--max-bytes", type=int, default=2**25, metavar="N", help="maximum request size in bytes (default: 33554432)"
    )
    parser.add_argument(
        "--max-files", type=int, default=64, metavar="N", help="maximum number of images per request (default: 64)"
    )
    parser.add_argument(
        "--max-pixels",
        type=int,
        default=50_000_000,
        metavar="N",
        help="maximum number of pixels per image (default: 50000000)",
    )
    parser.add_argument(
        "--timeout", type=float, default=30, metavar="S", help="request timeout in seconds (default: 30)"
    )
    parser.add_argument("--quiet", action="store_true", help="show only warnings, without an access log")
    add_force_option(parser)
    parser.add_argument("--ray", action="store_true", help="serve as a Ray Serve deployment")
    parser.add_argument("--replicas", type=count, metavar="N", help="for --ray: number of model replicas (default: 1)")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="for --ray: Ray cluster to join (default: start Ray on this machine)"
    )


def run(arguments: Namespace) -> int:
    """Serve a model until the process is interrupted."""
    limits = Limits(
        bytes=arguments.max_bytes, files=arguments.max_files, pixels=arguments.max_pixels, seconds=arguments.timeout,
        queue=arguments.queue, batch_size=arguments.batch_size, wait=arguments.wait_ms / 1000,
    )  # fmt: skip
    with log_output(arguments.quiet):
        serve(
            arguments.run,
            host=arguments.host,
            port=arguments.port,
            device=arguments.device,
            token=arguments.token,
            allowed_hosts=arguments.allowed_hosts,
            limits=limits,
            imports=arguments.imports,
            force=arguments.force,
            ray=arguments.ray,
            replicas=arguments.replicas,
            address=arguments.address,
        )
    return 0
