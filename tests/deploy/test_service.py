"""The service answers as the predictor does."""

import asyncio
import dataclasses
import logging
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from medic.deploy.service import Limits
from tests.deploy.served import Service, like, slow

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from medic.deploy.service.batcher import Batcher  # noqa: E402
from medic.deploy.service.metrics import Metrics  # noqa: E402


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
