"""Getting to Ray: a cluster that is there, or one that is started on this machine and ends with the sweep."""

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from medic.errors import MedicError, lacking

LOCALHOST = "127.0.0.1"
ANSWER = 5.0
"""Seconds that an address has to answer."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What opens a connection of HTTP/2, which Ray speaks, and an empty frame of settings, which is answered by one."""
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def connect(address: str | None, host: str | None, cores: int) -> Callable[[], None]:
    """Join the cluster at an address, or start one here that has so many cores and listens on a host.

    Returns what undoes it. A connection that this process has already is used, and kept.
    """
    place = LOCALHOST if host in (None, "localhost") else str(host)
    if address is None:
        _check_own(place)
        _prepare(place)
    else:
        _check_answers(address)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise lacking("executor 'ray' needs the package ray", "ray") from error
    if ray.is_initialized():
        if address is not None:
            raise MedicError(f"address {address}: this process is connected to Ray already; leave the address out")
        return lambda: None
    with _signals_kept():
        try:
            if address is None:
                _start(place, cores)
            else:
                ray.init(address, **_QUIET)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            reason = last_line(error.__cause__ or error)
            if address is None:
                raise MedicError(f"Ray cannot be started on {place}: {reason}") from error
            check = "check that `ray start` ran on this machine too, with the same Ray, Python and RAY_AUTH_MODE"
            raise MedicError(f"Ray at {address} cannot be joined: {reason}; {check}") from error
    return ray.shutdown


def last_line(error: BaseException) -> str:
    """Where Ray's errors say what it is about; what else may be the cause is left out."""
    *_, last = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return last.partition(" Some common causes include")[0]


def _check_answers(address: str) -> None:
    """Raise within seconds unless Ray is there; `ray.init` would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise MedicError(f"address {address!r}: give HOST:PORT, as `ray start --head` prints it")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER) as connection:
            if os.environ.get("RAY_USE_TLS") == "1":
                return
            connection.sendall(_HELLO)
            with connection.makefile("rb") as answer:
                settings = answer.read(9)[3:4] == b"\x04"
        reason = "what listens there is not Ray"
    except (OSError, OverflowError) as error:
        settings, reason = False, getattr(error, "strerror", None) or str(error)
    if not settings:
        check = "check host, port and firewall, and that `ray start --head` runs there"
        raise MedicError(f"no Ray answers at {address}: {reason}; {check}")


def _check_own(host: str) -> None:
    """Raise unless this machine can listen there; Ray would wait for minutes for somebody else to."""
    try:
        socket.create_server((host, 0)).close()
    except OSError as error:
        raise MedicError(f"host {host} is not an address of this machine: give one that is, or none") from error


def _prepare(host: str) -> None:
    """Set what a Ray that is started here reads, some of it when it is imported."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if host == LOCALHOST:  # elsewhere Ray takes this for the address of the network, and listens on all of them
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _start(host: str, cores: int) -> None:
    import ray

    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # or Ray keeps one in the home directory
    ray.init("local", num_cpus=cores, include_dashboard=False, _node_ip_address=host, **_QUIET)
    if (listens := ray.util.get_node_ip_address()) != host:
        raise RuntimeError(f"it listens on {listens}, because ray was imported before medic started it")


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM; ours lets runs save a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
