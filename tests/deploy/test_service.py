"""The service answers as the predictor does, and survives everything else that is sent to it."""

import asyncio
import dataclasses
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from medic.deploy.service import Limits
from medic.errors import MedicError
from tests.messages import naming

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from medic.deploy.service.app import make_app  # noqa: E402
from medic.deploy.service.batcher import Batcher  # noqa: E402
from medic.deploy.service.metrics import Metrics  # noqa: E402
from medic.deploy.service.server import listen, make_server  # noqa: E402


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


@pytest.fixture(scope="module")
def service(trained):
    with Service(trained.predictor) as running:
        yield running


@pytest.fixture(scope="module")
def paths(images):
    return sorted(images.glob("z/*/*.png"))


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


def test_answers_are_those_of_the_predictor(service, trained, paths):
    expected = trained.predictor.predict(paths)
    threshold = trained.predictor.threshold.probability
    answer = service.post(files=[("files", (path.name, path.read_bytes())) for path in paths])
    assert answer.status_code == 200
    for path, entry, prediction in zip(paths, answer.json()["predictions"], expected, strict=True):
        assert entry["name"] == path.name
        like(entry, prediction, threshold)
    for path, prediction in zip(paths, expected, strict=True):
        for kind in ("image/png", "application/octet-stream"):
            (entry,) = service.post(path.read_bytes(), headers={"content-type": kind}).json()["predictions"]
            like(entry, prediction, threshold)
    assert answer.json()["model"]["sha256"] == trained.predictor.description["sha256"]
    (entry,) = service.post(paths[0].read_bytes(), params={"top": 1}).json()["predictions"]
    assert len(entry["top"]) == 1


def test_small_packets_are_sent_at_once(service):
    """Otherwise each answer of a kept connection waits 40 ms for the client to acknowledge its headers."""
    with httpx.Client() as client:
        client.get(f"{service.url}/health")
        (connection,) = service.server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_concurrent_clients_share_passes(trained, paths, monkeypatch):
    slow(trained.predictor, 0.02, monkeypatch)
    expected = dict(zip(paths, trained.predictor.predict(paths), strict=True))
    with Service(trained.predictor) as service, httpx.Client(timeout=30) as client, ThreadPoolExecutor(32) as pool:

        def ask(number):
            path = paths[number % len(paths)]
            answer = client.post(f"{service.url}/predict", content=path.read_bytes())
            return path, answer.status_code, answer.json()

        for path, status, answer in pool.map(ask, range(200)):
            assert status == 200
            like(answer["predictions"][0], expected[path], answer["model"]["threshold"])
        text = client.get(f"{service.url}/metrics").text
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert numbers["medic_batch_images_sum"] == "200"
    assert int(numbers["medic_batch_images_count"]) < 100
    assert numbers['medic_requests_total{status="200"}'] == "200"
    assert float(numbers["medic_queue_images"]) == 0
    assert float(numbers["medic_held_bytes"]) == 0


def test_a_full_queue_is_503(trained, paths, monkeypatch):
    slow(trained.predictor, 0.5, monkeypatch)
    data = paths[0].read_bytes()
    with Service(trained.predictor, Limits(queue=4, files=4, batch_size=2)) as service, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: service.post(data), range(16)))
        assert {one.status_code for one in answers} == {200, 503}
        refused = [one for one in answers if one.status_code == 503]
        assert all(one.headers["retry-after"] == "1" and "busy" in one.json()["error"] for one in refused)
        assert service.post(data).status_code == 200  # it recovers


def test_a_request_may_fill_the_queue(trained, paths):
    with Service(trained.predictor, Limits(queue=2, files=2)) as service:
        forms = [[("files", (path.name, path.read_bytes())) for path in paths[:count]] for count in (2, 3)]
        assert [service.post(files=form).status_code for form in forms] == [200, 413]


def test_requests_of_a_batch_have_their_own_number_of_classes(trained, paths):
    data, metrics = paths[0].read_bytes(), Metrics()

    async def ask():
        async with Batcher(trained.predictor, Limits(wait=10), metrics) as batcher:
            return await asyncio.gather(batcher.decide([data], 1), batcher.decide([data], 2))

    assert [len(predictions[0].top) for predictions in asyncio.run(ask())] == [1, 2]
    assert metrics.batches.counts[1] == 1  # one batch of two images


def test_an_image_does_not_wait_for_others(trained, paths):
    """A batch waits only while images are being decoded."""
    data = paths[0].read_bytes()

    async def ask():
        async with Batcher(trained.predictor, Limits(wait=10), Metrics()) as batcher, asyncio.timeout(9):
            for _ in range(2):
                await batcher.decide([data], 1)

    asyncio.run(ask())


def huge_png(width=60_000, height=60_000):
    """A small file that promises many pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 100_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_bad_images_are_one_line_each(service, paths):
    good = paths[0].read_bytes()
    bad = {"text": b"no image", "cut": good[: len(good) // 2], "huge": huge_png(), "large": huge_png(9000, 9000)}
    for name, data in bad.items():
        answer = service.post(files=[("files", (name, data)), ("files", ("good", good))])
        assert answer.status_code == 200
        first, second = answer.json()["predictions"]
        assert set(first) == {"name", "error"}
        assert first["name"] == name
        assert "\n" not in first["error"]
        assert "object at" not in first["error"]
        assert "label" in second
        alone = service.post(data)
        assert alone.status_code == 422
        assert "error" in alone.json()["predictions"][0]
    assert "50 million" in service.post(bad["large"]).json()["predictions"][0]["error"]


FORM = {"content-type": "multipart/form-data; boundary=x"}
PART = b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a.png"\r\n\r\nabc\r\n'

TEXT = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"content": b""}, 400, "empty"),
        ({"content": b"{}", "headers": {"content-type": "application/json"}}, 415, "application/json multipart"),
        ({"files": [("image", ("a.png", b"abc"))]}, 400, "'image' 'files'"),
        ({"content": PART % b"files", "headers": FORM}, 400, "incomplete"),
        ({"content": b"--x--\r\n", "headers": FORM}, 400, ""),
        ({"content": b"nonsense", "headers": FORM}, 400, "malformed"),
        ({"content": b"a", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"--x\r\nA: " + b"b" * 10**6, "headers": FORM}, 400, "malformed"),
        ({"content": TEXT, "headers": FORM}, 400, "text"),
        ({"files": [("files", (f"{n}", b"a")) for n in range(65)]}, 413, "64 images"),
        ({"content": b"a", "params": {"top": "many"}}, 422, "top"),
        ({"content": b"a", "params": {"top": 0}}, 422, "top"),
        ({"content": b"a", "params": {"top": 10**30}}, 422, "top"),
        ({"content": b"a", "headers": {"host": "evil.example"}}, 403, "evil.example --allowed-hosts"),
        ({"content": b"a", "headers": {"host": "localhost.evil.example:80"}}, 403, "--allowed-hosts"),
        ({"content": b"a", "headers": {"host": "[::1"}}, 403, "--allowed-hosts"),
        ({"content": b"a", "headers": {"origin": "http://evil.example"}}, 403, "evil.example"),
        ({"content": b"a", "headers": {"origin": "null"}}, 403, "null"),
    ],
)  # fmt: skip
def test_bad_requests_are_one_line(service, options, status, message):
    answer = service.post(**options)
    assert answer.status_code == status
    assert naming_all(message, answer.json()["error"])
    assert "\n" not in answer.json()["error"]
    assert "Traceback" not in answer.text


def naming_all(words, text):
    return all(word in text for word in words.split())


def test_hosts(service, trained):
    for host in ("localhost", "localhost:1234", "127.0.0.1", "[::1]:8000", "192.168.1.5:8000"):
        assert httpx.get(f"{service.url}/health", headers={"host": host}).json() == {"status": "ok"}
    assert httpx.get(f"{service.url}/health", headers={"host": "model.example"}).status_code == 403
    with Service(trained.predictor, hosts=["model.example"]) as other:
        for origin in ({}, {"origin": "https://model.example"}):
            assert httpx.get(f"{other.url}/health", headers={"host": "Model.Example", **origin}).status_code == 200


OWN = "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("origin", "host", "site", "status"),
    [
        (f"http://{OWN}", OWN, None, 200),
        (f"http://{OWN}", OWN, "same-origin", 200),
        ("http://203.0.113.9", OWN, None, 403),
        ("http://localhost:8000", OWN, None, 403),
        ("http://127.0.0.1:9000", OWN, None, 403),
        ("http://127.0.0.1", OWN, None, 403),
        (f"http://{OWN}", OWN, "same-site", 403),
        (f"http://{OWN}", OWN, "cross-site", 403),
        ("null", OWN, None, 403),
        ("http://[", OWN, None, 403),
        ("http://a:b", OWN, None, 403),
        ("http://127.0.0.1", "127.0.0.1:80", None, 200),
        ("http://[::1]:8000", "[::1]:8000", None, 200),
        ("https://model.example", "Model.Example", None, 200),  # a proxy that ends TLS and passes on Host
        ("https://model.example:8443", "model.example:8443", None, 200),
        ("https://model.example:8443", "model.example", None, 403),  # one that drops the port from Host
        ("https://model.example:8443", "model.example", "same-origin", 200),
        ("https://model.example", OWN, None, 403),  # one that replaces Host
        ("https://model.example", OWN, "same-origin", 200),
        ("https://other.example", "model.example", None, 403),
    ],
)  # fmt: skip
def test_only_the_own_page_is_answered(any_host, origin, host, site, status):
    headers = {"origin": origin, "host": host} | ({} if site is None else {"sec-fetch-site": site})
    answer = httpx.get(f"{any_host.url}/health", headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert naming_all(f"{origin} proxy Host", answer.json()["error"])


@pytest.fixture(scope="module")
def any_host(trained):
    with Service(trained.predictor, hosts=["*"]) as running:
        yield running


def test_ready(trained, paths, monkeypatch):
    slow(trained.predictor, 1, monkeypatch)
    with Service(trained.predictor, Limits(queue=1, files=1), token="secret") as service:

        def ready():
            answer = httpx.get(f"{service.url}/ready")
            return answer.status_code, answer.json()

        assert ready() == (200, {"status": "ready"})
        with ThreadPoolExecutor() as pool:
            posted = pool.submit(service.post, paths[0].read_bytes(), headers={"authorization": "Bearer secret"})
            while (readiness := ready())[0] == 200:
                assert not posted.done()
            assert readiness == (503, {"error": "the service is busy: try again later"})
            assert posted.result().status_code == 200
        assert ready() == (200, {"status": "ready"})
        service.app.state.stopping = True
        assert ready() == (503, {"error": "the service is stopping: try again later"})
        health = httpx.get(f"{service.url}/health")
        assert (health.status_code, health.headers["connection"]) == (200, "close")


def test_the_access_log_has_a_line_per_request(trained, paths, caplog):
    caplog.set_level(logging.INFO, "medic.access")
    with Service(trained.predictor, token="secret") as service:
        right = {"authorization": "Bearer secret"}
        assert service.post(paths[0].read_bytes(), headers=right, params={"top": 1}).status_code == 200
        assert service.post(paths[0].read_bytes(), headers={"authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(f"{service.url}/ready?token=secret").status_code == 200
        assert httpx.get(f"{service.url}/a%0A\u00e9" + "b" * 1000, headers=right).status_code == 404
        assert httpx.get(f"{service.url}/health", headers={"host": "evil.example"}).status_code == 403
        with socket.create_connection(("127.0.0.1", service.port)) as connection:  # leaves before its answer
            head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\nContent-Length: 9\r\n"
            connection.sendall(head.encode() + b"\r\n")
            time.sleep(0.2)
        until = time.monotonic() + 5
        while len(caplog.messages) < 6 and time.monotonic() < until:
            time.sleep(0.01)
    lines = [re.sub(r" \d+\.\d ms$", "", line) for line in caplog.messages]
    path = "/a%0A%C3%A9" + "b" * 1000
    assert lines == [
        "127.0.0.1 POST /predict 200", "127.0.0.1 POST /predict 401", "127.0.0.1 GET /ready 200",
        f"127.0.0.1 GET {path[:200]} 404", "127.0.0.1 GET /health 403", "127.0.0.1 POST /predict -",
    ]  # fmt: skip
    assert all(line.endswith(" ms") for line in caplog.messages)


def test_a_token(trained, paths):
    with Service(trained.predictor, token="secret") as service:
        data = paths[0].read_bytes()
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}, {"authorization": b"Bearer \xff"}):  # fmt: skip  # noqa: E501
            answer = service.post(data, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert httpx.get(f"{service.url}/metrics", headers=headers).status_code == 401
        right = {"authorization": "Bearer secret"}
        assert service.post(data, headers=right).status_code == 200
        assert httpx.get(f"{service.url}/metrics", headers=right).status_code == 200
        assert httpx.get(f"{service.url}/health").status_code == 200
        assert httpx.get(service.url).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_may_have_as_many_bytes_as_allowed(trained, paths, declared):
    data = paths[0].read_bytes()
    for limit, status in ((len(data), 200), (len(data) - 1, 413)):
        with Service(trained.predictor, Limits(bytes=limit)) as service:
            answer = service.post(data if declared else iter([data]))
            assert ("content-length" in answer.request.headers) == declared
            assert answer.status_code == status


def test_too_many_bytes(trained, paths):
    data = paths[0].read_bytes()
    with Service(trained.predictor, Limits(bytes=20_000)) as service:

        def endless():
            for _ in range(100):
                yield b"x" * 1000

        assert service.post(b"x" * 20_001).status_code == 413
        answer = service.post(content=endless())  # without Content-Length
        assert answer.status_code == 413
        assert "20,000" in answer.json()["error"]
        for size, more in ((20_001, ""), (10**12, ""), (10**12, "Expect: 100-continue\r\n")):  # no body follows
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n{more}\r\n"
            answer = service.raw(head.encode())
            assert answer.startswith("HTTP/1.1 413 ")
            assert "connection: close" in answer
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.sendall(head.encode() + b"x" * 2**24)  # the client reads its answer after it has sent
            assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
        assert service.post(data).status_code == 200
        numbers = httpx.get(f"{service.url}/metrics").text
        assert "medic_held_bytes 0" in numbers


def test_bodies_of_all_requests_have_a_limit(trained, paths, caplog):
    """Clients that never end their requests cannot fill the memory, and leave nothing behind."""
    with Service(trained.predictor, Limits(bytes=10_000, seconds=30)) as service:
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n"
        held = []
        try:
            for _ in range(8):
                held.append(socket.create_connection(("127.0.0.1", service.port)))
                held[-1].sendall(head + b"x" * 9999)
            time.sleep(0.5)
            answer = service.post(paths[0].read_bytes() + b"x" * 1000)
            assert answer.status_code == 503
        finally:
            for one in held:
                one.close()
        until = time.monotonic() + 2  # before the requests run out of time
        while "medic_held_bytes 0" not in httpx.get(f"{service.url}/metrics").text:
            assert time.monotonic() < until
        assert service.post(paths[0].read_bytes()).status_code == 200
    assert caplog.text == ""


def test_a_slow_body_is_408(trained):
    with Service(trained.predictor, Limits(seconds=0.5)) as service:
        answer = service.raw(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        assert " 408 " in answer.splitlines()[0]


def test_a_slow_model_is_504(trained, paths, monkeypatch):
    slow(trained.predictor, 1, monkeypatch)
    with Service(trained.predictor, Limits(seconds=0.3)) as service:
        answer = service.post(paths[0].read_bytes())
        assert (answer.status_code, answer.headers["retry-after"]) == (504, "1")
        time.sleep(1.2)
        assert "medic_queue_images 0" in httpx.get(f"{service.url}/metrics").text


def test_an_unexpected_error_shows_only_its_number(trained, paths, monkeypatch, caplog):
    def outputs(self, pixels):
        raise RuntimeError("inside /secret/place")

    with Service(trained.predictor) as service:
        with monkeypatch.context() as patch:
            patch.setattr(type(trained.predictor), "outputs", outputs)
            answer = service.post(paths[0].read_bytes())
            assert answer.status_code == 500
            number = answer.json()["error"].split()[2].rstrip(";")
            assert "secret" not in answer.text
            assert f"error {number}" in caplog.text
            assert "inside /secret/place" in caplog.text
        assert service.post(paths[0].read_bytes()).status_code == 200


def test_names_of_clients_are_data(service, paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "../../etc/passwd\n<b>"
    answer = service.post(files=[("files", (name, paths[0].read_bytes()))])
    assert answer.json()["predictions"][0]["name"].startswith("../../etc/passwd")
    assert list(tmp_path.iterdir()) == []


def test_headers_and_schema(service):
    for path in ("/", "/health", "/openapi.json", "/nowhere"):
        headers = httpx.get(f"{service.url}{path}").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
    for path in ("/docs", "/redoc", "/nowhere"):
        answer = httpx.get(f"{service.url}{path}")
        assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
    assert httpx.get(f"{service.url}/predict").status_code == 405
    text = httpx.get(service.url).text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize("token", [None, "secret"])
def test_the_schema_describes_the_answers(trained, paths, token):
    from jsonschema import Draft202012Validator

    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    with Service(trained.predictor, Limits(bytes=20_000), token) as service:
        schema = httpx.get(f"{service.url}/openapi.json", headers=headers).json()
        assert set(schema["paths"]) == {"/predict", "/health", "/ready", "/metrics"}
        operation = schema["paths"]["/predict"]["post"]
        assert "multipart/form-data" in operation["requestBody"]["content"]
        good = paths[0].read_bytes()
        sent = [
            ({"content": good}, 200),
            ({"files": [("files", ("a", good)), ("files", ("b", b"no image"))]}, 200),
            ({"content": b"no image"}, 422),
            ({"content": good, "params": {"top": 0}}, 422),
            ({"content": b""}, 400),
            ({"content": b"x" * 20_001}, 413),
            ({"content": b"{}", "headers": {"content-type": "application/json"}}, 415),
            ({"content": good, "headers": {"origin": "http://evil.example"}}, 403),
            ({"content": good, "headers": {"authorization": ""}}, 200 if token is None else 401),
        ]
        for options, status in sent:
            answer = service.post(**{**options, "headers": headers | options.get("headers", {})})
            assert answer.status_code == status
            described = operation["responses"][str(status)]["content"]["application/json"]["schema"]
            Draft202012Validator(described).validate(answer.json())
            assert not Draft202012Validator(described).is_valid({})

    secured = {path for path, methods in schema["paths"].items() for one in methods.values() if one.get("security")}
    denied = {
        path for path, methods in schema["paths"].items() for one in methods.values() if "401" in one["responses"]
    }
    if token is None:
        assert "securitySchemes" not in schema.get("components", {})
        assert secured == denied == set()
    else:
        assert schema["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
        assert operation["security"] == [{"token": []}]
        assert secured == denied == {"/predict", "/metrics"}


def test_infinite_numbers_are_null(trained, paths):
    from medic.openset import Threshold

    never = dataclasses.replace(trained.predictor, threshold=Threshold(float("inf"), "fixed"))
    with Service(never) as service:
        answer = service.post(paths[0].read_bytes()).json()
        assert answer["predictions"][0]["label"] == "unknown"
        assert answer["model"]["threshold"] == 1
    other = dataclasses.replace(never, score=dataclasses.replace(never.score, probability=False))
    with Service(other) as service:
        assert service.post(paths[0].read_bytes()).json()["model"]["threshold"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"queue": 3}, "--queue 3 --max-files 64"), ({"bytes": 0}, "--max-bytes 0"),
     ({"seconds": float("nan")}, "--timeout"), ({"wait": -1}, "--wait-ms"), ({"batch_size": 0}, "--batch-size")],
)  # fmt: skip
def test_impossible_limits(options, message):
    with pytest.raises(MedicError, match=naming(message)):
        Limits(**options)


@pytest.fixture
def started(trained, request):
    """The command in its own process, and its address; a parameter is a list of options."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("MEDIC_TOKEN", None)
    command = [sys.executable, "-m", "medic", "serve", str(trained.path), "--port", "0", "--device", "cpu"]
    command += getattr(request, "param", [])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    line = process.stdout.readline()
    assert "http://127.0.0.1:" in line, process.communicate()
    yield process, line.split()[-1]
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_stops_it_after_what_was_accepted(started, paths, number):
    """The service answers requests in progress, and one that an open connection sends a moment later."""
    process, url = started
    data = paths[0].read_bytes()
    kept = httpx.Client(timeout=20)
    assert kept.get(f"{url}/ready").status_code == 200
    assert "GET /ready 200" in process.stderr.readline()
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\nExpect: 100-continue\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=20) as connection:
        connection.sendall(head.encode())
        assert b" 100 " in connection.recv(1000)  # the request is accepted, and its body is waited for
        process.send_signal(number)
        assert "stopping" in process.stderr.readline()
        time.sleep(0.3)
        last = kept.get(f"{url}/ready")
        assert (last.status_code, last.headers["connection"]) == (503, "close")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert b" 200 " in answer.splitlines()[0]
    assert b'"label"' in answer
    assert process.wait(15) == 0
    log = [re.sub(r"^\S+ \S+ |[\d.]+ ms", "", line) for line in process.communicate()[1].splitlines()]
    assert log == ["127.0.0.1 GET /ready 503 ", "127.0.0.1 POST /predict 200 "]


def test_connections_that_wait_are_accepted_before_it_stops(trained):
    async def stop():
        listening = listen("127.0.0.1", 0)
        server = make_server(make_app(trained.predictor), listening, lambda: None)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listening])
        with socket.create_connection(listening.getsockname(), timeout=5) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await server.shutdown([listening])  # the event loop has not accepted the connection
            return connection.recv(1000)

    assert asyncio.run(stop()).startswith(b"HTTP/1.1 200 ")


def test_a_request_that_takes_too_long_to_stop_is_503(trained, caplog):
    with Service(trained.predictor) as service:
        service.server.config.timeout_graceful_shutdown = 0.1
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
            time.sleep(0.2)
            service.server.should_exit = True
            answer = connection.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer
    assert "Traceback" not in caplog.text


@pytest.mark.slow
def test_a_second_signal_stops_it_at_once(started):
    process, url = started
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert "stopping" in process.stderr.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(8) == 0  # before the time that requests in progress have
        assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")
    (line,) = process.communicate()[1].splitlines()
    assert "POST /predict 503" in line


@pytest.mark.slow
def test_it_stops_although_a_client_is_slow(started):
    process, url = started
    port = int(url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        time.sleep(0.3)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert 9 < time.monotonic() - begun < 15
        assert process.wait(20) == 0
    assert "Traceback" not in process.communicate()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("started", "lines"), [([], ["POST /predict 400", "stopping"]), (["--quiet"], [])], indirect=["started"]
)
def test_clients_cannot_fill_the_log(started, lines):
    """A request is one line, and nonsense is none."""
    process, url = started
    assert httpx.post(f"{url}/predict", content=b"nonsense", headers=FORM).status_code == 400
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=20) as connection:
        connection.sendall(b"\x16\x03 nonsense\r\n\r\n")
        assert b" 400 " in connection.recv(1000)
    process.terminate()
    log = process.communicate(timeout=20)[1].splitlines()
    assert len(log) == len(lines)
    assert all(text in line for text, line in zip(lines, log, strict=True))


def test_mistakes_of_the_command(trained, monkeypatch, capsys):
    from medic.cli import main

    monkeypatch.delenv("MEDIC_TOKEN", raising=False)
    run = str(trained.path)

    def failing(*options):
        assert main(["serve", run, *options]) == 2
        return capsys.readouterr().err

    assert naming_all("--host 0.0.0.0 token MEDIC_TOKEN", failing("--host", "0.0.0.0"))
    assert "--host" in failing("--host", "::")
    assert "ASCII" in failing("--host", "0.0.0.0", "--token", "")
    assert naming_all("--port 70000", failing("--port", "70000"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert naming_all("in use --port", failing("--port", str(taken.getsockname()[1])))
    assert naming_all("--queue 1", failing("--queue", "1"))
    assert "device" in failing("--device", "tpu")
    assert "--ray" in failing("--replicas", "2")
    assert naming_all("--replicas 0", failing("--ray", "--replicas", "0"))


@pytest.mark.slow
def test_replicas_on_ray(trained, paths):
    """The same application answers from two processes, and stops on a signal."""
    # Not `importorskip`: other tests of this process start a Ray, which must not have been imported before.
    if subprocess.run([sys.executable, "-c", "import ray.serve"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs the extra ray-serve")
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    options = ["--port", str(port), "--device", "cpu", "--ray", "--replicas", "2"]
    command = [sys.executable, "-m", "medic", "serve", str(trained.path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        for path, prediction in zip(paths, trained.predictor.predict(paths), strict=True):
            answer = httpx.post(f"http://127.0.0.1:{port}/predict", content=path.read_bytes(), timeout=30).json()
            like(answer["predictions"][0], prediction, answer["model"]["threshold"])
        process.terminate()
        assert process.wait(60) == 0


def test_metrics_are_prometheus_text(service, paths):
    service.post(paths[0].read_bytes())
    text = httpx.get(f"{service.url}/metrics").text
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert ["medic_request_seconds", "histogram"] in types
    for name, kind in types:
        lines = [line for line in text.splitlines() if line.startswith(name)]
        assert lines
        if kind == "histogram":
            buckets = [int(line.rsplit(" ", 1)[1]) for line in lines if "_bucket" in line]
            assert buckets == sorted(buckets)
            assert f"{name}_count {buckets[-1]}" in lines
