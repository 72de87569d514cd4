"""Read request bodies with size limits, and parse them into images outside the event loop."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from medic.deploy.service.limits import BODIES, Limits
from medic.errors import one_line

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import Receive

FIELD = "files"
LINGER = 1.0
"""Seconds to spend discarding the rest of a body before closing the connection."""
LONGEST_NAME = 200


class Refused(Exception):
    """An error response: an HTTP status and a one-line message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Upload(NamedTuple):
    """An uploaded image. The name is only for display."""

    name: str
    data: bytes


@dataclass
class Bodies:
    """Reads request bodies, and limits the total size of all bodies held in memory."""

    limits: Limits
    held: int = 0

    async def read(self, request: "Request", body: bytearray) -> None:
        """Append a request's body to `body`. Call `release` when the request ends."""
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.limits.bytes:
            raise self._too_large()
        async for chunk in request.stream():
            if len(body) + len(chunk) > self.limits.bytes:
                raise self._too_large()
            if self.held + len(chunk) > BODIES * self.limits.bytes:
                raise Refused(503, "too many large requests: try again later")
            body += chunk
            self.held += len(chunk)

    def release(self, body: bytearray) -> None:
        """Free a body."""
        self.held -= len(body)
        body.clear()

    def _too_large(self) -> Refused:
        return Refused(413, f"the request is larger than {self.limits.bytes:,} bytes: send fewer or smaller images")


async def discard(receive: "Receive") -> None:
    """Discard the rest of a body for up to `LINGER` seconds.

    Closing a connection with unread bytes resets it, and the client may then lose the response it was sent.
    """
    try:
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body"):
                pass
    except TimeoutError:
        pass


def split(body: bytearray, kind: str, limits: Limits) -> list[Upload]:
    """Parse a body into images: the files in a form, or a single image."""
    name = kind.partition(";")[0].strip().lower()
    if name == "multipart/form-data":
        uploads = _parts(bytes(body), kind, limits)
        if not uploads:
            raise Refused(400, f"the form contains no files: send images in the field {FIELD!r}")
        return uploads
    if name.startswith("image/") or name in ("", "application/octet-stream"):
        if not body:
            raise Refused(400, "the body is empty: send an image")
        return [Upload("image", bytes(body))]
    expected = "multipart/form-data, image/* or application/octet-stream"
    raise Refused(415, f"unsupported Content-Type {_quoted(name)}: expected {expected}")


def _parts(body: bytes, kind: str, limits: Limits) -> list[Upload]:
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    uploads: list[Upload] = []
    headers: dict[bytes, bytes] = {}
    name, value, data = bytearray(), bytearray(), bytearray()

    def header() -> None:
        headers[bytes(name).lower()] = bytes(value)
        name.clear()
        value.clear()

    def begin() -> None:
        if len(uploads) == limits.files:
            raise Refused(413, f"the request contains more than {limits.files} images: send fewer at a time")
        headers.clear()
        data.clear()

    def end() -> None:
        options = parse_options_header(headers.get(b"content-disposition", b""))[1]
        field = options.get(b"name", b"").decode("utf-8", "replace")
        if field != FIELD or b"filename" not in options:
            part_type = "file" if b"filename" in options else "text"
            raise Refused(
                400, f"unexpected {part_type} in form field {_quoted(field)}: send images in the field {FIELD!r}"
            )
        uploads.append(Upload(options[b"filename"].decode("utf-8", "replace")[:LONGEST_NAME], bytes(data)))

    ended: list[bool] = []
    try:
        boundary = parse_options_header(kind)[1].get(b"boundary")
        if not boundary:
            raise Refused(400, "Content-Type multipart/form-data requires a boundary")
        callbacks: Mapping[str, object] = {
            "on_part_begin": begin,
            "on_header_field": lambda text, start, stop: name.extend(text[start:stop]),
            "on_header_value": lambda text, start, stop: value.extend(text[start:stop]),
            "on_header_end": header,
            "on_part_data": lambda text, start, stop: data.extend(text[start:stop]),
            "on_part_end": end,
            "on_end": lambda: ended.append(True),
        }
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Refused(400, "malformed form: send valid multipart/form-data") from error
    if not ended:
        raise Refused(400, "incomplete form: the final boundary is missing")
    return uploads


def _quoted(text: str) -> str:
    """Quote a client's text for a one-line message."""
    return one_line(repr(text[:LONGEST_NAME]))
