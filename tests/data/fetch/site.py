"""A server on this machine that can do everything wrong."""

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """What is at an address, and how badly it is served."""

    content: bytes = b""
    type: str = "application/octet-stream"
    etag: str | None = '"v1"'
    ranges: bool = True
    length: bool = True
    cuts: list[int] = field(default_factory=list)
    """Of the first replies, the bytes after which the connection is cut."""
    statuses: list[int] = field(default_factory=list)
    """The first replies are these errors."""
    headers: dict[str, str] = field(default_factory=dict)
    status: int = 200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 5

    def do_GET(self):
        self.server.requests.append((self.path, dict(self.headers)))
        page = self.server.pages.get(self.path, Page(status=404))
        status, start = page.statuses.pop(0) if page.statuses else page.status, 0
        wanted, condition = self.headers["Range"], self.headers["If-Range"]
        if (
            status == 200
            and page.ranges
            and wanted
            and condition in (None, page.etag, page.headers.get("Last-Modified"))
        ):
            status, start = 206, int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.reply(page, status, page.content[start:], start)

    def reply(self, page, status, body, start):
        self.send_response(status)
        headers = {"Content-Type": page.type, "Connection": "close"}
        headers |= {"ETag": page.etag} if page.etag else {}
        headers |= {"Content-Length": str(len(body))} if page.length else {}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{len(page.content)}"
        for key, value in (headers | page.headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body[: page.cuts.pop(0)] if page.cuts else body)
        self.close_connection = True

    def log_message(self, *_):
        pass


class Site:
    """The server, its pages by path, and the requests that it had."""

    def __init__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.pages = self._server.pages = {}
        self.requests = self._server.requests = []
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def put(self, path, content=b"", **options):
        """Serve a page and return its address."""
        self.pages[path] = Page(content, **options)
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def header(self, name):
        """What the requests had in a header, in turn."""
        return [headers.get(name) for _, headers in self.requests]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
