"""Use a trained model to classify new images, or label them unknown."""

import copy
import os
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
from medic.deploy.layout import DESCRIPTION, check_model_files, model_folder
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
from medic.deploy.paths import folder_images
from medic.errors import MedicError, first_line, is_shortage, one_line
from medic.models import Classifier, Ensemble, Preprocessing
from medic.openset import Score, Shift, Temperature, Threshold, chosen_threshold, p_values, predicted_class
from medic.openset.shift import FEWEST
from medic.training import infer
from medic.utils.outputs import Output

BATCH, GPU_BATCH = 64, 512
"""Images per forward pass on CPU and GPU. Two more batches are decoded in the meantime."""
BATCH_PIXELS = BATCH * 512**2
"""Maximum pixels per forward pass. A model may declare images of 4096 × 4096, of which 64 could fill the memory."""


class Prediction(NamedTuple):
    """The decision for one image.

    - `label`: a known class, or "unknown" if the score is below the threshold.
    - `known`: whether the image is accepted as known.
    - `score`: the confidence that the image is known. A probability if the model's score is one.
    - `top`: the most likely known classes with their closed-set probabilities.
    - `p_value`: the share of held-out known images that score at most as high. A small value means that the image is
      unlikely to be known. None for models from version 0.3.
    """

    label: str
    known: bool
    score: float
    top: tuple[tuple[str, float], ...]
    p_value: float | None = None


@dataclass(frozen=True)
class Predictor:
    """A trained network with its classes, preprocessing, score and threshold."""

    network: Classifier | Ensemble
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    decoded: int
    """Side length in pixels to which images are decoded, before `preprocessing` resizes them."""
    views: int
    score: Score
    threshold: Threshold
    description: Mapping[str, Any]
    """The full content of `model.json`, including provenance."""
    device: torch.device
    held_out: HeldOut = field(default_factory=HeldOut)
    """Statistics of held-out images, for p-values and `watch`."""

    def __repr__(self) -> str:
        model = self.description.get("model")
        backbone = f"{model['backbone']} at " if isinstance(model, Mapping) and "backbone" in model else ""
        return one_line(
            f"Predictor({len(self.classes)} classes, {backbone}{self.preprocessing.size} px, "
            f"score {self.score.name}, threshold {self.display_threshold:.4g})"
        )

    def predict(self, images: AnyImage | Iterable[AnyImage], top: int = 3) -> list[Prediction]:
        """Classify images, in order.

        Args:
            images: One image or several: paths, bytes, PIL images, arrays of shape (H, W, 3), tensors of shape
                (3, H, W), or batches of them. A folder stands for all images below it, sorted by path. An unreadable
                image raises an error; see `stream` for an alternative.
            top: The number of most likely classes in each prediction.
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
        """Yield one prediction per image, in order and in bounded memory, or the error for an unreadable image."""
        for batch, output in self._passes(images, batch_size):
            decisions = iter(() if output is None else self.decide(output, top))
            for pixels in batch:
                yield pixels if isinstance(pixels, BadImage) else next(decisions)

    def infer(self, images: AnyImage | Iterable[AnyImage], unreadable: list[BadImage] | None = None) -> Output:
        """Return the network's outputs for images, in order.

        An unreadable image raises an error. If a list is passed as `unreadable`, the error is appended to the list
        instead, and the image is skipped.
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
            raise unreadable[0] if unreadable else MedicError("no images to classify: pass at least one")
        return Output.cat(outputs)

    def _passes(
        self, images: AnyImage | Iterable[AnyImage], batch_size: int | None = None
    ) -> Generator[tuple[list[Pixels | BadImage], Output | None]]:
        """Yield batches of images with the outputs for their readable images, or None if no image is readable."""
        batch_size = self.most(batch_size or (GPU_BATCH if self.device.type == "cuda" else BATCH))
        read = ordered(self.read, each_image(_expanded(images)), 2 * batch_size)
        while batch := list(islice(read, batch_size)):
            readable = [pixels for pixels in batch if not isinstance(pixels, BadImage)]
            yield batch, self.outputs(torch.from_numpy(np.stack(readable))) if readable else None

    def most(self, batch_size: int) -> int:
        """Return the batch size for a forward pass, reduced if large images would exceed the memory."""
        scale = 8 if self.device.type == "cuda" else 1
        return max(1, min(batch_size, scale * BATCH_PIXELS // max(self.decoded, self.preprocessing.size) ** 2))

    def read(self, image: AnyImage, limit: int = MAX_PIXELS) -> Pixels | BadImage:
        """Return an image as pixels of shape (3, decoded, decoded), or the error if it is unreadable.

        Images with more than `limit` pixels are treated as unreadable.
        """
        try:
            return to_pixels(image, self.decoded, limit)
        except BadImage as error:
            return error

    def outputs(self, pixels: Tensor) -> Output:
        """Return the network's outputs, on the CPU, for uint8 pixels of shape (N, 3, decoded, decoded)."""
        if len(self.preprocessing.mean) != pixels.shape[1]:
            raise MedicError(
                f"the model expects images with {len(self.preprocessing.mean)} channels, as in the benchmark "
                "it was trained on"
            )
        every = torch.arange(len(pixels))
        with _usable():
            return infer(self.network, Resident(pixels), every, self.preprocessing, self.device, self.views)

    def decide(self, output: Output, top: int = 3) -> list[Prediction]:
        """Return the predictions for the network's outputs."""
        with _usable():
            confidence = self.score(output)
            if confidence.shape != (len(output.logits),):
                raise ValueError(f"score has shape {tuple(confidence.shape)} for {len(output.logits)} images")
        if bool(confidence.isnan().any()) or not bool(output.logits.isfinite().all()):
            raise MedicError("the model returned NaN or infinity: its weights are damaged, or training diverged")
        scores = self.to_score(confidence)
        known = confidence >= self.threshold.value
        probabilities, order = self.class_logits(output).softmax(1).topk(min(top, len(self.classes)))
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

    def class_logits(self, output: Output) -> Tensor:
        """Return the logits, of shape (N, C) in float64, divided by the temperature if the score has one."""
        fitted = self.score.function
        return fitted.scaled(output) if isinstance(fitted, Temperature) else output.logits.double()

    def watch(self, images: AnyImage | Iterable[AnyImage] | Output, unreadable: list[BadImage] | None = None) -> Shift:
        """Compare unlabelled images, or the network's outputs for them, with held-out source images.

        The result contains estimates of the accuracy and the share of unknown images, and the p-values of two tests for
        drift. `unreadable` has the same meaning as in `infer`.
        """
        reference = self.held_out.reference
        if reference is None:
            count = sum(map(len, self.held_out.known.values()))
            if not count:
                raise MedicError(
                    "the model file has no held-out images to compare with: retrain with medic 0.4 or later"
                )
            raise MedicError(
                f"watching requires at least {2 * FEWEST} held-out images, got {count}: retrain with a larger --holdout"
            )
        output = images if isinstance(images, Output) else self.infer(images, unreadable)
        if output.features is None:
            raise MedicError("outputs must include features: pass the images instead")
        with _usable():
            return reference.assess(self.score(output), output.features, self.threshold.value)

    def to(self, device: str | torch.device) -> "Predictor":
        """Return the predictor on a device. The network is copied if the device changes."""
        torch_device = _device(device)
        network = self.network if torch_device == self.device else copy.deepcopy(self.network).to(torch_device)
        return replace(self, network=network, device=torch_device)

    def warm_up(self) -> None:
        """Run the first forward pass, which is slow. Raises an error if the model does not accept RGB images."""
        self.outputs(torch.zeros(1, 3, self.decoded, self.decoded, dtype=torch.uint8))

    def at(self, threshold: Threshold | float) -> "Predictor":
        """Return the predictor with a different threshold. A number is on the scale of `Prediction.score`."""
        if not isinstance(threshold, Threshold | float | int):
            raise MedicError(f"threshold must be a number, got {threshold!r}")
        chosen = threshold if isinstance(threshold, Threshold) else chosen_threshold(self.score, threshold)
        return replace(self, threshold=chosen)

    @property
    def learned(self) -> bool:
        """Whether training learned anything, that is, did better than chance on held-out source images."""
        return read_learned(self.description)

    @property
    def display_threshold(self) -> float:
        """The threshold on the scale of `Prediction.score`."""
        if self.score.probability and self.threshold.probability is not None:
            return self.threshold.probability
        return float(self.to_score(torch.tensor(self.threshold.value, dtype=torch.float64)))

    def to_score(self, confidence: Tensor) -> Tensor:
        """Convert confidences to the scale of `Prediction.score`: to probabilities, if the score is one."""
        return confidence.sigmoid() if self.score.probability else confidence

    def save(self, folder: Path | str) -> None:
        """Save `model.safetensors` and `model.json` to a folder for `load`. Replaces a saved model."""
        folder = Path(folder)
        if folder.exists() and not (folder / DESCRIPTION).exists() and (folder.is_file() or any(folder.iterdir())):
            raise MedicError(f"{folder} contains other files: choose a new folder, or one with a saved model")
        kept = {key: value for key, value in self.description.items() if key not in ("format", "sha256", CHECKSUM)}
        own = {
            "classes": list(self.classes),
            "preprocessing": describe_preprocessing(self.preprocessing, self.decoded),
            "views": self.views,
            "score": {"name": self.score.name},
            "threshold": self.threshold._asdict(),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_model(folder, self.network, self.score, self.held_out, {**kept, **own})


def _expanded(images: AnyImage | Iterable[AnyImage]) -> AnyImage | Iterable[AnyImage]:
    """Replace a folder by the paths of the images in it."""
    if isinstance(images, str | Path) and os.path.isdir(images):  # noqa: PTH112, which raises for long names
        return folder_images(str(images))
    return images


@contextmanager
def _usable() -> Iterator[None]:
    """Convert any error that an untrusted network or score raises on images into a one-line `MedicError`."""
    try:
        yield
    except (MedicError, MemoryError):
        raise
    except Exception as error:
        if is_shortage(error):
            raise
        raise MedicError(f"the model failed on these images: {first_line(error)}") from error


def load(path: Path | str, device: str = "cpu", model: Any = None) -> Predictor:
    """Load a trained model from a run directory, or from any folder with `model.json` and `model.safetensors`.

    Args:
        path: The folder.
        device: The device to compute on, such as `cuda`.
        model: The network, or a function that creates it, if the model was trained with `medic.train(model=…)`.
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
    """Load a model whose description has been read."""
    try:
        network, score, held_out = read_network(folder, described)
        preprocessing, decoded = read_preprocessing(described)
        views = described["views"]
        if type(views) is not int or not 0 < views <= MAX_VIEWS:
            raise ValueError(f"'views' must be 1 to {MAX_VIEWS}, got {views!r}")
        read_learned(described)  # raises an error for invalid values
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
    except Exception as error:  # untrusted or damaged files may cause any error
        raise unusable(folder, error) from error


def _device(device: str | torch.device) -> torch.device:
    """Return a device, or raise an error if it is not available."""
    try:
        torch_device = torch.device(device)
        torch.empty(1, device=torch_device)
    except (RuntimeError, AssertionError) as error:  # torch raises AssertionError without CUDA
        if is_shortage(error):
            raise
        raise MedicError(f"device {str(device)!r} is not available ({first_line(error)}): use cpu") from error
    return torch_device
