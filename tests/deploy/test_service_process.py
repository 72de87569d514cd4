"""The command `medic serve` as a process: signals, connections, its log and its mistakes."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.deploy.served import FORM, Service, like, naming_all

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

from medic.deploy.service.app import make_app  # noqa: E402
from medic.deploy.service.server import listen, make_server  # noqa: E402


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
