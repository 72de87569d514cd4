"""Export of a model as one graph: from pixels to logits, score and decision, checked before it is handed over."""

import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from medic._version import __version__
from medic.deploy.layout import DESCRIPTION
from medic.deploy.predictor import Predictor
from medic.errors import MedicError, first_line, lacking
from medic.openset import SCORES, Fitted
from medic.utils.files import atomic_write, writing

OUTPUTS = ("label", "score", "logits")
TOLERANCE = 1e-4
"""The largest difference in a score, and relative to the largest logit in a logit, that another runtime may have."""
EXAMPLE = 3
"""Images in the batch that is traced; not 1 and not a number of channels, which a tracer may take for a constant."""

Runtime = Callable[[NDArray[np.uint8]], dict[str, NDArray[Any]]]
"""A graph in its own runtime: pixels (N, C, decoded, decoded) to outputs by name."""


class DecisionGraph(nn.Module):
    """Maps uint8 pixels (N, C, decoded, decoded) to what `Predictor.decide` returns.

    `label` (N,) is the number of a class, or -1 for unknown; `score` (N,) a probability if the score is one.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.network = predictor.network
        self._predictor = predictor

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return label, score and logits (N, K)."""
        predictor = self._predictor
        output = self.network(predictor.preprocessing(images.float() / 255))
        confidence = predictor.score(output)
        label = torch.where(confidence >= predictor.threshold.value, output.logits.argmax(1), -1)
        return label, predictor.to_score(confidence), output.logits


def export(predictor: Predictor, path: Path, form: str, pixels: Tensor) -> float:
    """Write a model as `onnx` or `torch-export`, if it decides like the original on pixels (N, C, decoded, decoded).

    Returns the largest difference of a score.
    """
    if predictor.views > 1:
        raise MedicError(f"the model averages {predictor.views} views of an image, which a graph does not: use views 1")
    if predictor.score.fitter is not None or isinstance(predictor.score.function, Fitted):
        plain = ", ".join(name for name, score in SCORES.items() if score.fitter is None)
        raise MedicError(f"score {predictor.score.name!r} is fitted on images, which no graph contains: use {plain}")
    make = {"onnx": _make_onnx, "torch-export": _make_program}[form]
    with writing("export", path), atomic_write(path) as file:
        content, run = make(predictor)
        difference = _compare(predictor, run, pixels)
        file.write(content)
    return difference


def _trace(predictor: Predictor) -> Any:
    """Return the exported program of a model, for batches of any size."""
    side, channels = predictor.decoded, len(predictor.preprocessing.mean)
    example = torch.zeros(EXAMPLE, channels, side, side, dtype=torch.uint8)
    graph = DecisionGraph(predictor.to("cpu")).eval()
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(graph, (example,), dynamic_shapes=({0: torch.export.Dim("images", min=1)},))
    except Exception as error:  # whatever a part of a network or a score leads to
        part = f"backbone {predictor.description['model']['backbone']!r} with score {predictor.score.name!r}"
        raise MedicError(f"{part} cannot be exported: {first_line(error)}") from error


def _make_program(predictor: Predictor) -> tuple[bytes, Runtime]:
    """Return the content of the file and its runtime. Torch's writer aborts the process if a file refuses its bytes."""
    buffer = io.BytesIO()
    torch.export.save(_trace(predictor), buffer, extra_files={DESCRIPTION: json.dumps(_metadata(predictor))})
    content = buffer.getvalue()
    module = torch.export.load(io.BytesIO(content)).module()

    def run(pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            outputs = module(torch.from_numpy(pixels))
        return {name: value.numpy() for name, value in zip(OUTPUTS, outputs, strict=True)}

    return content, run


def _make_onnx(predictor: Predictor) -> tuple[bytes, Runtime]:
    """Return the content of the file and its runtime."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401, which torch needs
    except ImportError as error:
        raise lacking("export to ONNX needs onnx, onnxscript and onnxruntime", "onnx") from error
    program = _trace(predictor)
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: "batch"},),  # which only names the axis, since the program is traced already
                verbose=False,
            )
    except Exception as error:
        raise MedicError(f"the model cannot be exported to ONNX: {first_line(error)}") from error
    if made is None:
        raise MedicError("the model cannot be exported to ONNX: torch returned nothing")
    model = made.model_proto
    noted = {key: json.dumps(value, ensure_ascii=False) for key, value in _metadata(predictor).items()}
    onnx.helper.set_model_props(model, noted)
    content: bytes = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda pixels: dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"images": pixels}), strict=True))


def _metadata(predictor: Predictor) -> dict[str, Any]:
    """Return what the graph does not contain: names, and how an image becomes its input."""
    side = predictor.decoded
    how = f"RGB, upright by EXIF, resized to {side} × {side} by Pillow's bilinear filter, uint8 (N, 3, {side}, {side})"
    return {
        "medic": __version__,
        "classes": list(predictor.classes),
        "input": how,
        "score": predictor.score.name,
        "threshold": predictor.threshold._asdict(),
        "provenance": predictor.description.get("provenance", {}),
    }


def _compare(predictor: Predictor, run: Runtime, pixels: Tensor) -> float:
    """Refuse a graph that decides otherwise than the model; return the largest difference of a score."""
    worst = 0.0
    for part in pixels.split(64):
        output = predictor.outputs(part)
        confidence = predictor.score(output)
        score = predictor.to_score(confidence)
        exported = run(part.numpy())
        scale = float(output.logits.abs().max()) + 1
        logits = float(np.abs(exported["logits"] - output.logits.numpy()).max()) / scale
        difference = float(np.abs(exported["score"] - score.numpy()).max())
        if not (logits <= TOLERANCE and difference <= TOLERANCE * (1 + float(score.abs().max()))):  # also if NaN
            raise MedicError(f"the exported graph computes other scores, by {difference:.1e}: it is not written")
        label = torch.where(confidence >= predictor.threshold.value, output.logits.argmax(1), -1)
        # On the threshold, or between two equal logits, rounding may decide.
        close = (confidence - predictor.threshold.value).abs() <= 10 * TOLERANCE * (1 + confidence.abs())
        top = output.logits.topk(min(2, output.logits.shape[1])).values
        close |= (top[:, 0] - top[:, -1]).abs() <= TOLERANCE * scale
        if bool(((torch.from_numpy(exported["label"]) != label) & ~close).any()):
            raise MedicError("the exported graph decides otherwise: it is not written")
        worst = max(worst, difference)
    return worst


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which prints its steps and warns about itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export", "onnx_ir")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
