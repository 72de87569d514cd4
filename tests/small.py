"""Small stand-ins for data and networks, so that a test over all methods takes seconds."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from medic.config import imports
from medic.data import BENCHMARKS, Dataset, LazyDataset, Resident, Storage
from medic.evaluation import evaluator as evaluation
from medic.evaluation.evaluator import measure_validation
from medic.models import HALVES, OURS, ConvNet
from medic.models.backbones import import_timm
from medic.models.gfnet import GFNet


@dataclasses.dataclass(frozen=True)
class Ready(LazyDataset):
    """A dataset that is loaded already."""

    dataset: Dataset

    def look(self, storage: Storage) -> Dataset:
        return self.dataset

    def load(self, storage: Storage) -> Dataset:
        place = storage.device if storage.where in ("auto", "gpu") else torch.device("cpu")
        return dataclasses.replace(self.dataset, images=Resident(self.dataset.images.pixels.to(place)))


def tenth(dataset: Dataset) -> Dataset:
    """Return ten images of every domain and class of the built-in benchmark, as a dataset named `mini`."""
    kept = torch.tensor([index for index, path in enumerate(dataset.paths) if int(path[-3:]) < 10])
    return dataclasses.replace(
        dataset,
        name="mini",
        images=Resident(dataset.images.gather(kept, torch.device("cpu"))),
        domain=dataset.domain[kept],
        label=dataset.label[kept],
        paths=tuple(dataset.paths[index] for index in kept),
        hash=hashlib.sha256(b"mini").hexdigest(),
    )


def small_network() -> ConvNet:
    """Build the digits network with 8 channels instead of 64. It maps (N, 3, 32, 32) to (N, 32).

    Most of its time is in the convolution of whole images, so the first one has a stride of 2. The padding of the last
    one restores the size of the features.
    """
    network = ConvNet()
    network.num_features, network.channels = 32, 8
    for block in range(1, 5):
        stride, padding = 2 if block == 1 else 1, 2 if block == 4 else 1
        convolution = nn.Conv2d(3 if block == 1 else 8, 8, kernel_size=3, stride=stride, padding=padding)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        setattr(network, f"conv{block}", convolution)
    return network


def small_gfnet(size: int) -> GFNet:
    """Build a GFNet of 8 channels and four blocks for images of `size` pixels a side."""
    return GFNet(dims=(8, 8, 8, 8), depths=(1, 1, 1, 1), image_size=size)


def small_generator(channels: int, size: int) -> nn.Module:
    """Build a generator that maps noise (N, 100) to pixels (N, channels, size, size) in [0, 1]."""
    first, last = nn.ConvTranspose2d(100, 8, 4), nn.ConvTranspose2d(8, channels, size // 4, stride=size // 4)
    return nn.Sequential(nn.Unflatten(1, (100, 1, 1)), first, nn.BatchNorm2d(8), nn.ReLU(), last, nn.Sigmoid())


def small_discriminator(channels: int) -> nn.Module:
    """Build a discriminator that maps pixels (N, channels, S, S) to log-odds (N,)."""
    maps = nn.Sequential(nn.Conv2d(channels, 8, 8, stride=8), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))
    return nn.Sequential(maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1), nn.Flatten(0))


def small_resnet(name: str) -> Callable[..., nn.Module]:
    """Return what timm calls to make a ResNet of a name: here with four blocks of 16 channels."""
    from timm.models._builder import build_model_with_cfg
    from timm.models.resnet import BasicBlock, ResNet

    # With 8 channels, the backward pass of torch 2.13 over channels-last images ends in a segmentation fault.
    small = {"block": BasicBlock, "layers": (1, 1, 1, 1), "channels": (16, 16, 16, 16)}

    def make(pretrained: bool = False, **settings: Any) -> nn.Module:
        return build_model_with_cfg(ResNet, name, pretrained, **small, **settings)

    return make


def small_vit(name: str) -> Callable[..., nn.Module]:
    """Return what timm calls to make a vision transformer of a name: here with one block of 24 channels."""
    from timm.models._builder import build_model_with_cfg
    from timm.models.vision_transformer import VisionTransformer

    def make(pretrained: bool = False, **settings: Any) -> nn.Module:
        small = {"patch_size": 14, "embed_dim": 24, "depth": 1, "num_heads": 1, "init_values": 1e-5}
        return build_model_with_cfg(VisionTransformer, name, pretrained, **small, **settings)

    return make


def register_mini(patch: pytest.MonkeyPatch, dataset: Dataset) -> None:
    """Register the benchmark `mini` with its backbone `small`, and replace GFNet by a small one."""
    ready = Ready("mini", dataset.domains, dataset.classes, dataset)
    bench = dataclasses.replace(
        BENCHMARKS["digits"], name="mini", split="mini-6-4", backbone="small", reader=lambda *_: ready
    )
    patch.setitem(BENCHMARKS, "mini", bench)
    patch.setitem(OURS, "small", (lambda size: small_network(), HALVES))
    patch.setitem(imports._owners, ("backbone", "small"), __file__)  # otherwise, each test would define another network
    patch.setitem(OURS, "gfnet_h_ti", (small_gfnet, OURS["gfnet_h_ti"][1]))


def record_no_chance(patch: pytest.MonkeyPatch) -> None:
    """Leave chance levels out of records, as versions before 0.4 did: runs too short to learn then count as others."""

    def measure(outputs: evaluation.LabelledOutputs) -> dict[str, float]:
        return {key: value for key, value in measure_validation(outputs).items() if not key.startswith("chance")}

    patch.setattr(evaluation, "measure_validation", measure)


def shrink_backbones(patch: pytest.MonkeyPatch) -> None:
    """Make timm's ResNets and small DINOv2 and our GFNet small; they keep their names, weights and image sizes."""
    import_timm("resnet50")
    from timm.models import _registry

    for name in ("resnet18", "resnet50"):
        patch.setitem(_registry._model_entrypoints, name, small_resnet(name))
    dino = "vit_small_patch14_dinov2"
    patch.setitem(_registry._model_entrypoints, dino, small_vit(dino))
    patch.setitem(OURS, "gfnet_h_ti", (small_gfnet, OURS["gfnet_h_ti"][1]))
