"""Frozen backbones, whose features are computed once and cached for all runs."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from medic.data import Augmentation, Dataset, Images
from medic.data.cache import Arrays, build_in_parts, cached
from medic.data.images import Resident, Views
from medic.models import Backbone, Preprocessing
from medic.training import Inference, Precision, derive
from medic.utils.files import file_hash
from medic.utils.outputs import Output
from medic.utils.progress import Progress

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Number of images whose features are saved together, so that an interrupted computation resumes after them."""


@dataclass(frozen=True)
class FrozenBackbone:
    """A backbone whose features are computed once. `identity` identifies its code and weights."""

    backbone: Backbone
    identity: str
    device: torch.device
    precision: Precision
    cached: bool = True
    """Whether to cache the features for other runs. An object that exists in a single process has no other runs."""

    def features(self, dataset: Dataset, augmentation: Augmentation, views: int) -> Resident:
        """Return the features of a dataset's images, as images of shape (F, 1, 1) on the device.

        The first view is the plain image. All other views are augmented.
        """
        computed = [self._view(dataset, None if view == 0 else augmentation, view) for view in range(views)]
        rows = [features[:, :, None, None].to(self.device) for features in computed]
        return Resident(rows[0]) if views == 1 else Views(rows)

    def _view(self, dataset: Dataset, augmentation: Augmentation | None, view: int) -> Tensor:
        """Return the features of one view, of shape (N, F). Uses the cache if possible."""
        shape = tuple(dataset.images.shape[1:])  # the dataset hash does not include the decoded size
        preprocessing = self.backbone.preprocessing
        facts = (dataset.hash, shape, self.identity, preprocessing, self.precision)
        varied = () if augmentation is None else (augmentation, view)
        key = hashlib.sha256(repr(facts + varied).encode()).hexdigest()[:16]

        def build() -> Arrays:
            count = dataset.images.shape[0]
            logger.info("computing and caching features for %d images%s", count, f", view {view + 1}" if varied else "")
            images = dataset.images
            if augmentation is not None:
                images = _Augmented(dataset, augmentation, preprocessing, derive(0, f"view {view}"))
            module = _Featurizer(self.backbone.module).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
            # The cache is locked, so this process computes the features for all processes.
            infer = Inference(module, images, preprocessing, self.device, self.precision, shared=False)
            parts = {f"from-{chunk[0]}-to-{chunk[-1]}": chunk for chunk in torch.arange(count).split(CHUNK)}
            with Progress("features", 0, count, unit="images") as progress:
                compute = partial(self._compute, infer, progress)
                try:
                    features = build_in_parts(name, {part: partial(compute, chunk) for part, chunk in parts.items()})
                except KeyboardInterrupt as stop:
                    if str(stop):  # a worker of a sweep was told to stop
                        raise
                    raise KeyboardInterrupt("stopped: rerun the same command to resume") from None
            module.to("cpu")  # the run trains only the head
            return features

        name = f"features-{key}"
        return torch.from_numpy((cached(name, build) if self.cached else build())["features"])

    @staticmethod
    def _compute(infer: Inference, progress: Progress, positions: Tensor) -> Arrays:
        """Return the features of the images at consecutive positions."""
        progress.completed = int(positions[0])
        infer.on_images = lambda images: progress.advance(progress.completed + images, "computing")
        return {"features": infer(positions).logits.cpu().numpy()}


def identify_backbone(name: str, pool: str, weights: Path | None, seed: int, code: Sequence[str] = ()) -> str:
    """Identify a backbone by its name, the hash of its weights file or the seed of its initialisation, and its code.

    `code` contains the hashes of the code outside this package that defines the backbone.
    """
    origin = f"drawn with seed {seed}" if weights is None else file_hash(weights)
    return " ".join((name, pool, origin, *code))


class _Augmented(Images):
    """The images in a dataset, augmented and preprocessed. The augmentation of each image is fixed."""

    def __init__(self, dataset: Dataset, augmentation: Augmentation, preprocessing: Preprocessing, seed: int) -> None:
        self.images, self.augmentation, self.preprocessing = dataset.images, augmentation, preprocessing
        self.shape, self.ahead = dataset.images.shape, dataset.images.ahead
        count, _, height, width = self.shape
        generator = torch.Generator().manual_seed(seed)
        self._draws = augmentation.draw(count, height, width, generator, dataset.frames)

    def expect(self, positions: Tensor) -> None:
        """Prefetch the images."""
        self.images.expect(positions)

    def gather(self, positions: Tensor, device: torch.device) -> Tensor:
        """Return inputs of shape (n, channels, size, size) for positions of shape (n,)."""
        pixels = self.images.gather(positions, device).float() / 255
        draws = self._draws[positions.cpu()].to(device)
        return self.preprocessing(self.augmentation.apply(pixels, draws, self.preprocessing.size))


class _Featurizer(nn.Module):
    """A backbone that returns its features as logits."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Output:
        features: Tensor = self.backbone(x)
        return Output(features.float())
