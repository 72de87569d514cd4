"""A hub of models of our own."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

NAME = "someone/pets"
COMMIT = "c" * 40


class Hub:
    """The few addresses of the hub that a model needs."""

    def __init__(self):
        self.files, self.created, self.fetched, self.sizes = {}, [], [], {}
        self.private = True
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/api/repos/create":
                    hub.created.append(json.loads(body))
                    self.answer({"url": f"{hub.url}/{NAME}"})
                elif self.path == f"/api/models/{NAME}/preupload/main":
                    files = [file["path"] for file in json.loads(body)["files"]]
                    self.answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in files]})
                elif self.path == f"/api/models/{NAME}/commit/main":
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file":
                            hub.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                    self.answer({"commitUrl": f"{hub.url}/{NAME}/commit/{COMMIT}", "commitOid": COMMIT})
                elif self.path == "/api/validate-yaml":
                    self.answer({"errors": [], "warnings": []})
                else:
                    self.answer({"error": "no such address"}, 404)

            def do_GET(self):
                place = self.path.partition("?")[0]
                if place in (f"/api/models/{NAME}", f"/api/models/{NAME}/revision/main"):
                    sizes = {name: len(data) for name, data in hub.files.items()} | hub.sizes
                    siblings = [{"rfilename": name, "size": size, "blobId": "b"} for name, size in sizes.items()]
                    self.answer({"id": NAME, "sha": COMMIT, "private": hub.private, "tags": [],
                                 "siblings": siblings})  # fmt: skip
                else:
                    self.send_file(place)

            def do_HEAD(self):
                self.send_file(self.path.partition("?")[0])

            def send_file(self, place):
                data = hub.files.get(place.removeprefix(f"/{NAME}/resolve/{COMMIT}/"))
                if data is None:
                    self.answer({"error": "no such file"}, 404)
                    return
                self.send_response(200)
                self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command == "GET":
                    hub.fetched.append(place.rpartition("/")[2])
                    self.wfile.write(data)

            def answer(self, value, status=200):
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serve_hub(patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub, which the hub's library asks."""
    hub = Hub()
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        thread.join()
        hub.server.server_close()
