"""The middleware in front of the application: it refuses forbidden requests, hides errors and logs every response."""

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from medic.deploy.service.metrics import Metrics
from medic.errors import one_line

if TYPE_CHECKING:
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
"""Paths that require no token: the page has a field for the token, and probes cannot send one.

If the service has a token, these paths reveal nothing about the model.
"""
STOPPING = "the service is stopping: try again later"
RETRY = 1
"""Seconds after which a client may retry."""
LONGEST_PATH = 200
"""Maximum length, in characters, of a path in the access log."""


class Guard:
    """Middleware that checks host, origin and token before reading the body, and logs every response.

    After an unexpected error, the client receives an error number but no details.
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
        """Handle a request."""
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
                if self.state.stopping:  # the client should send its next request elsewhere
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
        except ClientDisconnect:  # while the request was being read
            _log(scope, "-", started)
        except asyncio.CancelledError:  # the service is stopping, and its grace period is over
            if not begun:
                await _send(sending, 503, STOPPING)
        except Exception:  # do not expose internals to the client
            number = uuid.uuid4().hex[:12]
            logger.exception("error %s", number)
            if not begun:
                await _send(sending, 500, f"internal error {number}; see the service log for details")
        return None

    def _problem(self, path: str, headers: Mapping[bytes, str]) -> tuple[int, str] | None:
        """Return the status and error message for a forbidden request, or None if it is allowed."""
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._allowed(host):
            return 403, f"host {_quoted(host)} is not allowed: start the service with --allowed-hosts NAME"
        if origin is not None and not _is_own(origin, host, headers.get(b"sec-fetch-site")):
            way = "behind a proxy, configure it to forward the Host header"
            return 403, f"origin {_quoted(origin)} is not allowed; {way}"
        if self.token is not None and path not in OPEN:
            kind, _, sent_token = headers.get(b"authorization", "").partition(" ")
            right = hmac.compare_digest(sent_token.strip().encode("latin-1"), self.token)
            if kind.lower() != "bearer" or not right:
                return 401, "missing or invalid token: send it as `Authorization: Bearer TOKEN`"
        return None

    def _allowed(self, host: str) -> bool:
        """Return whether a Host header is allowed. This prevents DNS rebinding by other websites."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if name is None:
            return False
        return "*" in self.hosts or name == "localhost" or name in self.hosts or _is_number(name)


def _is_own(origin: str, host: str, site: str | None) -> bool:
    """Return whether a request comes from the service's own page.

    If the browser sends Sec-Fetch-Site, it has already compared the origins, even behind a proxy that changes Host.
    Otherwise, Origin and Host must have the same name and port. The schemes may differ, because a proxy may terminate
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
    """Write a line to the access log, without the query and the headers, which may contain secrets."""
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
