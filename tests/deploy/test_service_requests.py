"""The service survives whatever is sent to it, and answers errors in one line."""

import socket
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from medic.deploy.service import Limits
from medic.errors import MedicError
from tests.deploy.served import FORM, Service, naming_all, slow
from tests.messages import naming

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")


PART = b'--x\r\nContent-Disposition: form-data; name="%s"; filename="a.png"\r\n\r\nabc\r\n'
TEXT = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'
OWN = "127.0.0.1:8000"


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


def test_hosts(service, trained):
    for host in ("localhost", "localhost:1234", "127.0.0.1", "[::1]:8000", "192.168.1.5:8000"):
        assert httpx.get(f"{service.url}/health", headers={"host": host}).json() == {"status": "ok"}
    assert httpx.get(f"{service.url}/health", headers={"host": "model.example"}).status_code == 403
    with Service(trained.predictor, hosts=["model.example"]) as other:
        for origin in ({}, {"origin": "https://model.example"}):
            assert httpx.get(f"{other.url}/health", headers={"host": "Model.Example", **origin}).status_code == 200


@pytest.fixture(scope="module")
def any_host(trained):
    with Service(trained.predictor, hosts=["*"]) as running:
        yield running


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


@pytest.mark.parametrize(
    ("options", "message"),
    [({"queue": 3}, "--queue 3 --max-files 64"), ({"bytes": 0}, "--max-bytes 0"),
     ({"seconds": float("nan")}, "--timeout"), ({"wait": -1}, "--wait-ms"), ({"batch_size": 0}, "--batch-size")],
)  # fmt: skip
def test_impossible_limits(options, message):
    with pytest.raises(MedicError, match=naming(message)):
        Limits(**options)
