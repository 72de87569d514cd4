"""A frozen backbone: the features of all images, computed once and cached for all runs."""

import hashlib
import logging
from pathlib import Path

import torch
from torch import Tensor, nn

from medic.data import Dataset
from medic.data.cache import cached
from medic.data.images import Resident
from medic.models import Backbone, Preprocessing
from medic.training import Inference, Precision
from medic.utils.files import file_hash
from medic.utils.outputs import Output

logger = logging.getLogger(__name__)


def frozen_features(
    dataset: Dataset,
    backbone: Backbone,
    preprocessing: Preprocessing,
    identity: str,
    device: torch.device,
    precision: Precision,
) -> Resident:
    """Return the features of a dataset's images as images of (F, 1, 1), on a device; `identity` names the weights."""
    shape = tuple(dataset.images.shape[1:])  # the hash does not depend on the decoded size
    key = hashlib.sha256(repr((dataset.hash, shape, identity, preprocessing, precision)).encode()).hexdigest()[:16]

    def build() -> dict[str, object]:
        count = dataset.images.shape[0]
        logger.info("computing the features of %d images once", count)
        module = _Featurizer(backbone.module).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        infer = Inference(module, dataset.images, preprocessing, device, precision)
        features = infer(torch.arange(count)).logits.cpu()
        module.to("cpu")  # the run trains the head alone
        return {"features": features.numpy()}

    arrays = cached(f"features-{key}", build)  # type: ignore[arg-type]
    features = torch.from_numpy(arrays["features"])
    return Resident(features[:, :, None, None].to(device))


def weights_identity(name: str, weights: Path | None, seed: int) -> str:
    """Identify a backbone's weights by the contents of their file, or by the seed they were drawn with."""
    if weights is None:
        return f"{name} drawn with seed {seed}"
    return f"{name} {file_hash(weights)}"


class _Featurizer(nn.Module):
    """A backbone that returns its features as outputs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Output:
        features: Tensor = self.backbone(x)
        return Output(features.float())
