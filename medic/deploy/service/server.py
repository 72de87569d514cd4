"""The process of the service: it listens, and on a signal it answers what is queued and ends."""

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
"""Seconds that requests in progress have when the service is asked to stop."""
IDLE = 1
"""Seconds that connections without a request have to send one when the service is asked to stop."""
CONNECTIONS = 1000
"""Connections at a time; more are answered with 503."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_access(host: str, token: str | None) -> None:
    """Raise an error if other machines could connect without a token, or if a client could not send it in a header."""
    if token is None and not is_loopback(host):
        raise MedicError(f"--host {host} lets other machines connect: set a token with MEDIC_TOKEN or --token")
    if token is not None and (not token.isascii() or not token.isprintable() or not token.strip() or " " in token):
        raise MedicError("--token or MEDIC_TOKEN must be printable ASCII characters without spaces")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    if not 0 <= port < 2**16:
        raise MedicError(f"port {port}: give a number from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=CONNECTIONS)
    except OSError as error:
        other = isinstance(error, socket.gaierror) or error.errno is None
        way = "choose another with --host" if other else "choose another with --port"
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
    _check_process()
    # It logs every damaged form, and clients must not be able to fill a disk with messages.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    _write_access_log()
    with listening:
        asyncio.run(make_server(app, listening, ready).serve([listening]))


def _check_process() -> None:
    """Raise an error where a service cannot receive signals: in a notebook, or outside the main thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if threading.current_thread() is threading.main_thread():
            return
    raise MedicError("a service needs its own process: start `medic serve` in a terminal")


def _write_access_log() -> None:
    """Write the access log to standard error; not by the handler of other messages, which is ten times slower."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access = logging.getLogger("medic.access")
    access.handlers = [handler]
    access.propagate = False


def make_server(app: "FastAPI", listening: socket.socket, ready: Callable[[], None]) -> "uvicorn.Server":
    """Return a server that calls `ready` when it listens, and loses no request when it stops."""
    try:
        import uvicorn
    except ImportError as error:
        raise lacking("the service needs uvicorn", "serve") from error
    config = uvicorn.Config(
        app, log_config=None, log_level="error", access_log=False, server_header=False, ws="none", lifespan="on",
        proxy_headers=False, limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=GRACE, timeout_keep_alive=15,
    )  # fmt: skip

    class Server(uvicorn.Server):
        """Stops without raising the signal again."""

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
            self.should_exit = app.state.stopping = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Accept what waits, refuse new connections, and close the others once they have their answers.

            uvicorn alone closes every connection without a request in progress at once, although a request may be on
            its way or wait to be read. From now on, answers close their connections, so that these become few.
            """
            loop = asyncio.get_running_loop()
            until = loop.time() + IDLE
            # One turn of the event loop accepts what waits, and the next one attaches it, which a closed server cannot.
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
