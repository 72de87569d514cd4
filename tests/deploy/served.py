"""The service of a predictor in a thread, for tests."""

import asyncio
import socket
import threading
import time

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from medic.deploy.service.app import make_app  # noqa: E402
from medic.deploy.service.server import listen  # noqa: E402

FORM = {"content-type": "multipart/form-data; boundary=x"}


class Service:
    """The service of a predictor in a thread, on a free port."""

    def __init__(self, predictor, limits=None, token=None, hosts=()):
        import uvicorn

        self.app = make_app(predictor, limits, token, hosts)
        self.listening = listen("127.0.0.1", 0)
        self.port = self.listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = uvicorn.Server(uvicorn.Config(self.app, log_config=None, log_level="warning", lifespan="on"))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([self.listening])))

    def __enter__(self):
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(20)
        self.listening.close()
        assert not self.thread.is_alive()

    def post(self, content=None, **options):
        if content is not None:
            options = {"content": content, "headers": {"content-type": "image/png"}, **options}
        return httpx.post(f"{self.url}/predict", **{"timeout": 20, **options})

    def raw(self, text, wait=5.0):
        """Send bytes as they are, and return the status line and the rest of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            connection.sendall(text)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(65536)
        return answer.decode()


def slow(predictor, seconds, monkeypatch):
    """Make forward passes slow."""
    original = type(predictor).outputs

    def outputs(self, pixels):
        time.sleep(seconds)
        return original(self, pixels)

    monkeypatch.setattr(type(predictor), "outputs", outputs)


def like(entry, prediction, threshold):
    """Assert that an entry of an answer is a prediction; on the threshold the rounding of a batch may decide."""
    if abs(prediction.score - threshold) > 1e-6:
        assert (entry["label"], entry["known"]) == (prediction.label, prediction.known)
    assert entry["score"] == pytest.approx(prediction.score, abs=1e-4)
    assert entry["threshold"] == pytest.approx(threshold)
    assert [one["class"] for one in entry["top"]] == [name for name, _ in prediction.top]
    assert [one["probability"] for one in entry["top"]] == pytest.approx([p for _, p in prediction.top], abs=1e-4)


def naming_all(words, text):
    return all(word in text for word in words.split())
