"""Weights by name, from a hub that is a server of our own."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import save, save_file

from medic.cli import main
from medic.errors import MedicError
from medic.models import create_backbone, find_weights
from medic.runs.build import build_backbones
from medic.runs.directory import run_hash
from tests.built import loaded
from tests.messages import naming

PLACE = "/timm/resnet18.tv_in1k/resolve/main/model.safetensors"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def state():
    """Weights of the right shapes, in half precision, with the classifier that the hub's files have."""
    import torch

    module = create_backbone("resnet18").module
    return {**{k: v.half() for k, v in module.state_dict().items()}, "fc.weight": torch.zeros(1000, 512).half()}


@pytest.fixture
def hub(state):
    """The address of a server that has one file, and the requests it was sent."""
    body, requests = save(state), []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(b"")

        def do_GET(self):
            self.answer(body)

        def answer(self, sent):
            requests.append((self.command, self.path))
            self.send_response(200 if self.path == PLACE else 404)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("Content-Length", str(len(body) if self.path == PLACE else 0))
            self.end_headers()
            if self.path == PLACE:
                self.wfile.write(sent)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def use_hub(tmp_path, monkeypatch):
    """Make the hub's library ask another server, with an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def use(endpoint):
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        place = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", place)

    return use


def started(weights):
    """The file of some weights, the name of a run that starts from them, and the sum of the first layer."""
    plan, dataset, _ = loaded(backbone="resnet18", weights=weights)
    first = build_backbones(plan)[0].module.conv1.weight.double().sum().item()
    return str(plan.weights), run_hash(plan, dataset.hash), first


@pytest.mark.slow
def test_names_are_fetched_once_and_count_as_their_file_does(hub, use_hub, state, tmp_path):
    endpoint, requests = hub
    use_hub(endpoint)
    save_file(state, tmp_path / "mine.safetensors")
    names = ["imagenet-v1", "tv_in1k", "resnet18.tv_in1k", str(tmp_path / "mine.safetensors")]
    starts = [started(name) for name in names]
    assert len({path for path, _, _ in starts[:3]}) == 1
    assert starts[0][0].startswith(str(tmp_path / "home"))
    assert len({(name, first) for _, name, first in starts}) == 1
    assert starts[0][2] == pytest.approx(state["conv1.weight"].double().sum().item())
    assert requests.count(("GET", PLACE)) == 1
    # Weights in the cache need no server.
    use_hub(NOWHERE)
    assert started("imagenet-v1") == starts[0]


@pytest.mark.parametrize(("server", "weights", "name"), [
    (NOWHERE, "imagenet-v1", "resnet18.tv_in1k"),
    (None, "a1_in1k", "resnet18.a1_in1k"),
])  # fmt: skip
def test_what_cannot_be_fetched_is_one_line_with_a_way_out(hub, use_hub, tmp_path, capsys, server, weights, name):
    """A server that does not answer, and one that does not have the file."""
    endpoint = server or hub[0]
    use_hub(endpoint)
    options = ["--target", "street", "--backbone", "resnet18", "--weights", weights, "--output", str(tmp_path / "runs")]
    assert main(["train", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("medic: error: ")
    assert error.count("\n") == 1
    address = f"{endpoint}/timm/{name}/resolve/main/model.safetensors"
    assert all(word in error for word in (name, address, "--weights FILE"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("backbone", "weights", "message"), [
    ("convnet", "imagenet-v1", "imagenet-v1 convnet file"),
    ("convnet", "gone.pt", "gone.pt convnet file"),
    ("resnet18", "imagenet", "imagenet 'imagenet-v1'"),
    ("resnet18", "tv2_in1k", "tv2_in1k 'tv_in1k'"),
    ("resnet10t", "imagenet-v1", "imagenet-v1 resnet10t c3_in1k"),
    ("resnet18", "resnet50.tv_in1k", "resnet50.tv_in1k 'tv_in1k'"),
    ("convnext_base", "clip_laion2b", "convnext_base --backbone"),
    ("gcvit_tiny", "in1k", "https: --weights"),
])  # fmt: skip
def test_mistakes(backbone, weights, message):
    with pytest.raises(MedicError, match=naming(message)):
        find_weights(backbone, weights)


@pytest.mark.parametrize(("backbone", "weights", "message"), [
    ("resnet18", "gone.pth", "weights file gone.pth not found: check the path, or use named weights, such as --weights "
     "imagenet-v1 for a ResNet"),
    ("convnet", "gone.pth", "weights gone.pth not found; convnet has no named weights, so pass a file"),
    ("resnet18", "tests", "weights tests is a folder: pass a file in it"),
])  # fmt: skip
def test_a_missing_file_of_weights(backbone, weights, message):
    with pytest.raises(MedicError) as raised:
        find_weights(backbone, weights)
    assert str(raised.value) == message


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("imagenet-v1").touch()
    assert find_weights("resnet18", "imagenet-v1") == Path("imagenet-v1")
