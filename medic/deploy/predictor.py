"""A trained model in use: it names new images, or calls them unknown."""

import copy
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from medic.config.sources import allow_sources, lend_network
from medic.data.classes import UNKNOWN_LABEL
from medic.data.decode import MAX_PIXELS, BadImage
from medic.data.images import Resident
from medic.data.inputs import AnyImage, Pixels, each_image, ordered, to_pixels
from medic.deploy.layout import check_model_files, model_folder
from medic.deploy.model_file import (
    CHECKSUM,
    MAX_VIEWS,
    HeldOut,
    describe_preprocessing,
    read_classes,
    read_description,
    read_learned,
    read_network,
    read_preprocessing,
    read_threshold,
    unusable,
    write_model,
)
from medic.errors import MedicError, first_line, is_shortage
from medic.models import Classifier, Ensemble, Preprocessing
from medic.openset import Score, Shift, Threshold, chosen_threshold, p_values, predicted_class
from medic.openset.shift import FEWEST
from medic.training import infer
from medic.utils.outputs import Output

BATCH, GPU_BATCH = 64, 512
"""Images in a forward pass; two more batches are decoded meanwhile."""
BATCH_PIXELS = BATCH * 512**2
"""Pixels in a forward pass: a model of 45 MB may declare images of 4096 × 4096, of which 64 would fill the memory."""


class Prediction(NamedTuple):
    """The decision on one image.

    `label` is a class, or "unknown" if the score is below the threshold, and `known` says which. `score` is a
    probability if the model's score is one. `top` has the likeliest known classes, with their closed-set probabilities.
    `p_value` says how plausible the image is as a known one: the share of held-out known images with a score that is at
    most as large. It is None for a model of version 0.3.
    """

    label: str
    known: bool
    score: float
    top: tuple[tuple[str, float], ...]
    p_value: float | None = None


@dataclass(frozen=True)
class Predictor:
    """A trained network with what its outputs mean: classes, preprocessing, score and threshold."""

    network: Classifier | Ensemble
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    decoded: int
    """The side in pixels of the square that an image is decoded to, before `preprocessing` resizes it."""
    views: int
    score: Score
    threshold: Threshold
    description: Mapping[str, Any]
    """The whole content of `model.json`, with provenance."""
    device: torch.device
    held_out: HeldOut = field(default_factory=HeldOut)
    """Statistics of held-out images, for p-values and for `watch`."""

    def predict(self, images: AnyImage | Iterable[AnyImage], top: int = 3) -> list[Prediction]:
        """Decide on images: paths, bytes, PIL images, arrays (H, W, 3), tensors (3, H, W), or batches of them.

        The order is kept. An unreadable image raises an error; `stream` returns it instead.
        """
        predictions = []
        for prediction in self.stream(images, top):
            if isinstance(prediction, BadImage):
                raise prediction
            predictions.append(prediction)
        return predictions

    def stream(
        self, images: AnyImage | Iterable[AnyImage], top: int = 3, batch_size: int | None = None
    ) -> Generator[Prediction | BadImage]:
        """Yield a prediction for every image, in order and in bounded memory; for an unreadable one its error."""
        for batch, output in self._passes(images, batch_size):
            decisions = iter(() if output is None else self.decide(output, top))
            for pixels in batch:
                yield pixels if isinstance(pixels, BadImage) else next(decisions)

    def infer(self, images: AnyImage | Iterable[AnyImage], unreadable: list[BadImage] | None = None) -> Output:
        """Return the network's outputs for images, in order.

        The error of an unreadable image is raised, or with a list `unreadable` added to it, and the image left out.
        """
        outputs = []
        for batch, output in self._passes(images):
            for pixels in batch:
                if isinstance(pixels, BadImage):
                    if unreadable is None:
                        raise pixels
                    unreadable.append(pixels)
            if output is not None:
                outputs.append(output)
        if not outputs:
            raise unreadable[0] if unreadable else MedicError("no image was given")
        return Output.cat(outputs)

    def _passes(
        self, images: AnyImage | Iterable[AnyImage], batch_size: int | None = None
    ) -> Generator[tuple[list[Pixels | BadImage], Output | None]]:
        """Yield batches of images, and the outputs for the readable ones among them, if any."""
        batch_size = self.most(batch_size or (GPU_BATCH if self.device.type == "cuda" else BATCH))
        read = ordered(self.read, each_image(images), 2 * batch_size)
        while batch := list(islice(read, batch_size)):
            readable = [pixels for pixels in batch if not isinstance(pixels, BadImage)]
            yield batch, self.outputs(torch.from_numpy(np.stack(readable))) if readable else None

    def most(self, batch_size: int) -> int:
        """Return a number of images in a forward pass, lowered for images so large that memory would not suffice."""
        scale = 8 if self.device.type == "cuda" else 1
        return max(1, min(batch_size, scale * BATCH_PIXELS // max(self.decoded, self.preprocessing.size) ** 2))

    def read(self, image: AnyImage, limit: int = MAX_PIXELS) -> Pixels | BadImage:
        """Return the pixels (3, decoded, decoded) of an image, or the error of one that cannot be read.

        An image with more than `limit` pixels is not decoded.
        """
        try:
            return to_pixels(image, self.decoded, limit)
        except BadImage as error:
            return error

    def outputs(self, pixels: Tensor) -> Output:
        """Return the network's outputs, on the CPU, for uint8 pixels (N, 3, decoded, decoded)."""
        if len(self.preprocessing.mean) != pixels.shape[1]:
            raise MedicError(
                f"the model takes images with {len(self.preprocessing.mean)} channels, of the built-in benchmark "
                "that it was trained on"
            )
        every = torch.arange(len(pixels))
        with _usable():
            return infer(self.network, Resident(pixels), every, self.preprocessing, self.device, self.views)

    def decide(self, output: Output, top: int = 3) -> list[Prediction]:
        """Return the decisions for outputs of the network."""
        with _usable():
            confidence = self.score(output)
            if confidence.shape != (len(output.logits),):
                raise ValueError(f"its score has the shape {tuple(confidence.shape)} for {len(output.logits)} images")
        if bool(confidence.isnan().any()) or not bool(output.logits.isfinite().all()):
            raise MedicError("the model's outputs have NaN or infinity: its weights are damaged, or training diverged")
        scores = self.to_score(confidence)
        known = confidence >= self.threshold.value
        probabilities, order = output.logits.double().softmax(1).topk(min(top, len(self.classes)))
        domains = self.held_out.known.values()
        plausible = p_values(confidence, domains).tolist() if domains else [None] * len(confidence)
        chosen = zip(
            predicted_class(output).tolist(), known.tolist(), scores.tolist(), probabilities.tolist(), order.tolist(),
            plausible, strict=True,
        )  # fmt: skip
        return [
            Prediction(
                self.classes[label] if accepted else UNKNOWN_LABEL,
                accepted,
                score,
                tuple((self.classes[k], value) for k, value in zip(indices, values, strict=True)),
                p_value,
            )
            for label, accepted, score, values, indices, p_value in chosen
        ]

    def watch(self, images: AnyImage | Iterable[AnyImage] | Output, unreadable: list[BadImage] | None = None) -> Shift:
        """Compare images without labels, or the network's outputs for them, with held-out images of the sources.

        The result has estimates of the accuracy and of the share of unknown images, and the p-values of two tests for
        drift. `unreadable` is as in `infer`.
        """
        reference = self.held_out.reference
        if reference is None:
            raise MedicError(
                "the model has no held-out images to compare with: train it again with medic 0.4 or later and at least "
                f"{2 * FEWEST} validation images (a larger --holdout)"
            )
        output = images if isinstance(images, Output) else self.infer(images, unreadable)
        if output.features is None:
            raise MedicError("the outputs have no features: pass the images")
        with _usable():
            return reference.assess(self.score(output), output.features, self.threshold.value)

    def to(self, device: str | torch.device) -> "Predictor":
        """Return the predictor on a device. On another one than before, it has its own network."""
        torch_device = _device(device)
        network = self.network if torch_device == self.device else copy.deepcopy(self.network).to(torch_device)
        return replace(self, network=network, device=torch_device)

    def warm_up(self) -> None:
        """Make the first forward pass, which is slow, and fails if the model does not take photographs."""
        self.outputs(torch.zeros(1, 3, self.decoded, self.decoded, dtype=torch.uint8))

    def at(self, threshold: Threshold | float) -> "Predictor":
        """Return the predictor with another threshold; a number is on the scale of `Prediction.score`."""
        chosen = threshold if isinstance(threshold, Threshold) else chosen_threshold(self.score, threshold)
        return replace(self, threshold=chosen)

    @property
    def learned(self) -> bool:
        """Whether training learned anything: the model did better than chance on held-out source images."""
        return read_learned(self.description)

    @property
    def display_threshold(self) -> float:
        """The threshold on the scale of `Prediction.score`."""
        if self.score.probability and self.threshold.probability is not None:
            return self.threshold.probability
        return float(self.to_score(torch.tensor(self.threshold.value, dtype=torch.float64)))

    def to_score(self, confidence: Tensor) -> Tensor:
        """Return confidences on the scale of `Prediction.score`: probabilities, if the score is one."""
        return confidence.sigmoid() if self.score.probability else confidence

    def save(self, folder: Path | str) -> None:
        """Write `model.safetensors` and `model.json` into a folder; `load` reads them back."""
        kept = {key: value for key, value in self.description.items() if key not in ("format", "sha256", CHECKSUM)}
        own = {
            "classes": list(self.classes),
            "preprocessing": describe_preprocessing(self.preprocessing, self.decoded),
            "views": self.views,
            "score": {"name": self.score.name},
            "threshold": self.threshold._asdict(),
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_model(Path(folder), self.network, self.score, self.held_out, {**kept, **own})


@contextmanager
def _usable() -> Iterator[None]:
    """Turn whatever a stranger's network or score raises on images into an error of one line."""
    try:
        yield
    except (MedicError, MemoryError):
        raise
    except Exception as error:
        if is_shortage(error):
            raise
        raise MedicError(f"the model cannot be used on images: {first_line(error)}") from error


def load(path: Path | str, device: str = "cpu", model: Any = None) -> Predictor:
    """Read a trained model from a run's directory, or from any folder with its `model.json` and `model.safetensors`.

    Args:
        path: The folder.
        device: The device to compute on, such as `cuda`.
        model: The network, or the function that makes it, of a model that was trained with `medic.train(model=…)`.
    """
    torch_device = _device(device)
    folder = model_folder(path)
    check_model_files(folder)
    described = read_description(folder)
    made = described.get("model")
    backbone = str(made.get("backbone")) if isinstance(made, Mapping) else ""
    if model is not None:
        with lend_network(backbone, model):
            return _load(folder, described).to(torch_device)
    allow_sources({"backbone": backbone}, f"the model in {folder}")
    return _load(folder, described).to(torch_device)


def _load(folder: Path, described: dict[str, Any]) -> Predictor:
    """Read the network of a model whose description was read."""
    try:
        network, score, held_out = read_network(folder, described)
        preprocessing, decoded = read_preprocessing(described)
        views = described["views"]
        if type(views) is not int or not 0 < views <= MAX_VIEWS:
            raise ValueError(f"it has {views!r} views")
        read_learned(described)  # raises for a value of another type
        return Predictor(
            network=network,
            classes=read_classes(described),
            preprocessing=preprocessing,
            decoded=decoded,
            views=views,
            score=score,
            threshold=read_threshold(described),
            description=described,
            device=torch.device("cpu"),
            held_out=held_out,
        )
    except MemoryError:
        raise
    except Exception as error:  # whatever a stranger's or a damaged file leads to
        raise unusable(folder, error) from error


def _device(device: str | torch.device) -> torch.device:
    """Return a device, if this machine has it."""
    try:
        torch_device = torch.device(device)
        torch.empty(1, device=torch_device)
    except (RuntimeError, AssertionError) as error:  # torch raises an AssertionError without CUDA
        if is_shortage(error):
            raise
        raise MedicError(f"device {str(device)!r} cannot be used ({first_line(error)}): use cpu") from error
    return torch_device
