"""The server process: listens for requests, and shuts down gracefully on a signal."""

import asyncio
import logging
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING

from medic.errors import MedicError, lacking

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

GRACE = 10
"""Seconds that requests in progress have to finish when the service is stopping."""
IDLE = 1
"""Seconds that idle connections have to send a request when the service is stopping."""
CONNECTIONS = 1000
"""Maximum number of concurrent connections. Further connections are answered with 503."""


def is_loopback(host: str) -> bool:
    """Return whether an address accepts connections from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_access(host: str, token: str | None) -> None:
    """Raise an error if other machines could connect without a token, or if the token is invalid in a header."""
    if token is None and not is_loopback(host):
        raise MedicError(f"--host {host} is open to other machines and requires a token: set MEDIC_TOKEN or --token")
    if token is not None and (not token.isascii() or not token.isprintable() or not token.strip() or " " in token):
        raise MedicError("--token and MEDIC_TOKEN accept only printable ASCII characters without spaces")


def listen(host: str, port: int) -> socket.socket:
    """Create a listening socket."""
    if not 0 <= port < 2**16:
        raise MedicError(f"port must be from 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=CONNECTIONS)
    except OSError as error:
        other = isinstance(error, socket.gaierror) or error.errno is None
        way = "choose another address with --host" if other else "choose another port with --port"
        raise MedicError(f"cannot listen on {host} port {port}: {error.strerror or error}; {way}") from error
    # Connections inherit this option. Without it, the body of a response waits until the client acknowledges the
    # headers, which takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: "FastAPI", listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests. A second signal stops immediately."""
    _check_process()
    # It logs every malformed form, which would let clients fill the disk with messages.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    _write_access_log()
    with listening:
        asyncio.run(make_server(app, listening, ready).serve([listening]))


def _check_process() -> None:
    """Raise an error if the service cannot receive signals: in a notebook or outside the main thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is threading.main_thread():
            return
    raise MedicError("the service requires its own process: run `medic serve` in a terminal")


def _write_access_log() -> None:
    """Send the access log directly to standard error: the handler for other messages is ten times slower."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access = logging.getLogger("medic.access")
    access.handlers = [handler]
    access.propagate = False


def make_server(app: "FastAPI", listening: socket.socket, ready: Callable[[], None]) -> "uvicorn.Server":
    """Create a server that calls `ready` once it accepts requests, and loses no requests when it stops."""
    try:
        import uvicorn
    except ImportError as error:
        raise lacking("the service requires uvicorn", "serve") from error
    config = uvicorn.Config(
        app, log_config=None, log_level="error", access_log=False, server_header=False, ws="none", lifespan="on",
        proxy_headers=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=GRACE, timeout_keep_alive=15,
    )  # fmt: skip

    class Server(uvicorn.Server):
        """A server that stops without raising the signal again."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
            yield

        def _stop(self) -> None:
            if self.should_exit:
                self.force_exit = True
                # uvicorn would log the cancelled requests with tracebacks.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            else:
                logger.info("stopping once requests in progress are answered; press Ctrl-C again to stop immediately")
            self.should_exit = app.state.stopping = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Accept pending connections, stop listening, and close connections after their responses.

            uvicorn itself would immediately close connections without a request in progress, although a request may be
            on its way. While the service is stopping, every response closes its connection.
            """
            loop = asyncio.get_running_loop()
            until = loop.time() + IDLE
            # One turn of the event loop accepts pending connections. The next one attaches them to the open server.
            quiet = 0
            while (quiet := 0 if select.select([listening], [], [], 0)[0] else quiet + 1) < 2 and loop.time() < until:
                await asyncio.sleep(0)
            for server in self.servers:
                server.close()
            while not self.force_exit and loop.time() < until:
                await asyncio.sleep(0.05)
                if not self.server_state.connections:
                    break
            await super().shutdown(sockets)

    return Server(config)
