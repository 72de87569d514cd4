"""Export a model as a single graph from pixels to logits, score and decision, verified before it is saved."""

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
"""Maximum difference in scores, and in logits relative to the largest logit, between the graph and the model."""
EXAMPLE = 3
"""Batch size for tracing. A tracer may treat a size of 1 as a constant."""

Runtime = Callable[[NDArray[np.uint8]], dict[str, NDArray[Any]]]
"""Runs an exported graph: maps pixels of shape (N, C, decoded, decoded) to outputs by name."""


class DecisionGraph(nn.Module):
    """Maps uint8 pixels of shape (N, C, decoded, decoded) to the decisions of `Predictor.decide`.

    `label` of shape (N,) is a class index, or -1 for unknown. `score` of shape (N,) is on the scale of
    `Prediction.score`. The softmax of `logits`, of shape (N, C), gives the class probabilities.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.network = predictor.network
        self._predictor = predictor

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return labels and scores of shape (N,), and logits of shape (N, K)."""
        predictor = self._predictor
        output = self.network(predictor.preprocessing(images.float() / 255))
        confidence = predictor.score(output)
        label = torch.where(confidence >= predictor.threshold.value, output.logits.argmax(1), -1)
        return label, predictor.to_score(confidence), predictor.class_logits(output).to(output.logits.dtype)


def export(predictor: Predictor, path: Path, form: str, pixels: Tensor) -> float:
    """Export a model as `onnx` or `torch-export`, and return the largest difference between scores.

    The file is saved only if the graph makes the same decisions as the model on `pixels`, which has shape
    (N, C, decoded, decoded).
    """
    if predictor.views > 1:
        raise MedicError(f"cannot export a model that averages {predictor.views} views: train it with --views 1")
    function = predictor.score.function
    if function is None or (isinstance(function, Fitted) and not function.exportable):
        some = ", ".join(name for name, score in SCORES.items() if score.fitter is None or score.fitter.exportable)
        raise MedicError(f"cannot export score {predictor.score.name!r}, which is fitted to images: use one of {some}")
    make = {"onnx": _make_onnx, "torch-export": _make_program}[form]
    with writing("export", path), atomic_write(path) as file:
        content, run = make(predictor)
        difference = _compare(predictor, run, pixels)
        file.write(content)
    return difference


def _trace(predictor: Predictor) -> Any:
    """Trace a model into an exported program that accepts any batch size."""
    side, channels = predictor.decoded, len(predictor.preprocessing.mean)
    example = torch.zeros(EXAMPLE, channels, side, side, dtype=torch.uint8)
    graph = DecisionGraph(predictor.to("cpu")).eval()
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(graph, (example,), dynamic_shapes=({0: torch.export.Dim("images", min=1)},))
    except Exception as error:  # depends on the backbone and the score
        part = f"backbone {predictor.description['model']['backbone']!r} with score {predictor.score.name!r}"
        raise MedicError(f"{part} cannot be exported: {first_line(error)}") from error


def _make_program(predictor: Predictor) -> tuple[bytes, Runtime]:
    """Return the file's content and its runtime. Writes to memory, because torch aborts if writing a file fails."""
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
    """Return the file's content and its runtime."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401, required by torch
    except ImportError as error:
        raise lacking("ONNX export requires onnx, onnxscript and onnxruntime", "onnx") from error
    program = _trace(predictor)
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["images"],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: "batch"},),  # only names the axis: the program is already traced
                verbose=False,
            )
    except Exception as error:
        raise MedicError(f"the model cannot be exported to ONNX: {first_line(error)}") from error
    if made is None:
        raise MedicError("the model cannot be exported to ONNX: torch.onnx.export returned None")
    model = made.model_proto
    noted = {key: json.dumps(value, ensure_ascii=False) for key, value in _metadata(predictor).items()}
    onnx.helper.set_model_props(model, noted)
    content: bytes = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda pixels: dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"images": pixels}), strict=True))


def _metadata(predictor: Predictor) -> dict[str, Any]:
    """Return the metadata of an exported file: classes, threshold on the scale of `score`, and input preparation."""
    side = predictor.decoded
    how = (
        f"RGB, EXIF rotation applied, resized to {side} × {side} pixels with Pillow's bilinear filter, "
        f"uint8 of shape (N, 3, {side}, {side})"
    )
    return {
        "medic": __version__,
        "classes": list(predictor.classes),
        "input": how,
        "score": predictor.score.name,
        "threshold": {"rule": predictor.threshold.rule, "value": predictor.threshold.display_value},
        "provenance": predictor.description.get("provenance", {}),
    }


def _compare(predictor: Predictor, run: Runtime, pixels: Tensor) -> float:
    """Compare a graph with its model, and return the largest difference between scores.

    Raises an error if scores or decisions differ.
    """
    worst = 0.0
    for part in pixels.split(64):
        output = predictor.outputs(part)
        confidence = predictor.score(output)
        score = predictor.to_score(confidence)
        exported = run(part.numpy())
        own = predictor.class_logits(output)
        scale = float(own.abs().max()) + 1
        logits = float(np.abs(exported["logits"] - own.numpy()).max()) / scale
        difference = float(np.abs(exported["score"] - score.numpy()).max())
        if not (logits <= TOLERANCE and difference <= TOLERANCE * (1 + float(score.abs().max()))):  # also true for NaN
            raise MedicError(f"export not saved: its scores differ from the model's by up to {difference:.1e}")
        label = torch.where(confidence >= predictor.threshold.value, output.logits.argmax(1), -1)
        # Close to the threshold, or between two nearly equal logits, rounding may change the decision.
        close = (confidence - predictor.threshold.value).abs() <= 10 * TOLERANCE * (1 + confidence.abs())
        top = own.topk(min(2, own.shape[1])).values
        close |= (top[:, 0] - top[:, -1]).abs() <= TOLERANCE * scale
        if bool(((torch.from_numpy(exported["label"]) != label) & ~close).any()):
            raise MedicError("export not saved: some of its decisions differ from the model's")
        worst = max(worst, difference)
    return worst


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which prints progress and internal warnings."""
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
