"""The process of the service: it listens, and on a signal it answers what is queued and ends."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from medic.errors import MedicError, lacking

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

GRACE = 10
"""Seconds that requests in progress have when the service is asked to stop."""
CONNECTIONS = 1000
"""Connections at a time; more are answered with 503."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    if not 0 <= port < 2**16:
        raise MedicError(f"--port {port}: give 0 to 65535, where 0 is any free port")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=CONNECTIONS)
    except OSError as error:
        way = "choose another with --port" if error.errno is not None else "choose another with --host"
        raise MedicError(f"cannot listen on {host} port {port}: {error.strerror or error}; {way}") from error
    # Connections inherit the option. Headers and body of an answer are two writes: without it, the second one waits
    # until the client acknowledges the first, which takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the address of a socket for a browser."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: "FastAPI", listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and return; a second signal ends at once."""
    try:
        import uvicorn
    except ImportError as error:
        raise lacking("the service needs uvicorn", "serve") from error
    config = uvicorn.Config(
        app, log_config=None, log_level="error", access_log=False, server_header=False, ws="none", lifespan="on",
        proxy_headers=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=GRACE, timeout_keep_alive=15,
    )  # fmt: skip

    # It logs every damaged form, and clients must not be able to fill a disk with messages.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

    class Server(uvicorn.Server):
        """Stops without raising the signal again, and says when it is ready."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
            yield

        def _stop(self) -> None:
            if self.should_exit:
                self.force_exit = True
                # Requests and the lifespan are cancelled now, which it would log with tracebacks.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            else:
                logger.info("stopping: requests in progress are answered; Ctrl-C again stops at once")
            self.should_exit = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    with listening:
        asyncio.run(Server(config).serve([listening]))
