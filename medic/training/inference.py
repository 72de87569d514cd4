"""Inference: a model applied to images in evaluation mode."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic.data import Augmentation, Images
from medic.errors import is_shortage
from medic.models import Preprocessing
from medic.training.precision import Precision, arithmetic
from medic.utils import distributed
from medic.utils.memory import garbage_collection_paused
from medic.utils.modules import evaluating
from medic.utils.outputs import Output

logger = logging.getLogger(__name__)

VIEW = Augmentation(scale=(0.8, 1.0), flip=0.5)
"""The augmentation of views at test time."""
BATCH = 32
GPU_BATCH = 512


def channels_last(inputs: Tensor) -> Tensor:
    """Return inputs with channels last in memory, if they are images (N, C, H, W)."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def load(images: Images, positions: Tensor, preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """Return images as inputs of a network, without augmentation."""
    raw = images.gather(positions, device)
    return raw if raw.is_floating_point() else preprocessing(raw.float() / 255)  # features of a frozen backbone stay


@dataclass
class Inference:
    """Applies a model to images: features, logits and one-vs-all logits of each, in one pass.

    If the images are on the GPU, every batch is one launch of a CUDA graph, which stays valid as training moves the
    weights. With `compiled` the network is compiled first, which pays off for many images. If memory is short, fewer
    images are in a pass from then on.
    """

    model: nn.Module
    images: Images
    preprocessing: Preprocessing
    device: torch.device
    precision: Precision = "fp32"
    captured: bool = False
    compiled: bool = False
    views: int = 1
    """The number of random crops and flips whose outputs are averaged; the same ones for every image."""
    batch_size: int = 0
    """Images in a forward pass; 0 stands for the default of the device."""

    def __post_init__(self) -> None:
        self.batch_size = self.batch_size or (GPU_BATCH if self.device.type == "cuda" else BATCH)
        self._graph: Callable[[Tensor], Output] | None = None
        self._network = torch.compile(self.model, dynamic=False) if self.compiled else self.model

    @torch.no_grad()  # not inference_mode, because the outputs of a graph are overwritten
    def __call__(self, indices: Tensor, features: bool = True) -> Output:
        """Return the outputs for the images at `indices`, in this order, on the device; processes share the work.

        Without `features` the features, by far the largest part, are dropped.
        """
        while True:
            try:
                return self._infer(indices, features)
            except Exception as error:
                if not is_shortage(error) or self.batch_size == 1:
                    raise
            # Outside of the handler, whose exception keeps the tensors of the failed pass.
            self.batch_size, self._graph = self.batch_size // 2, None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            logger.warning("out of memory: inference goes on with %d images at a time", self.batch_size)

    def _infer(self, indices: Tensor, features: bool) -> Output:
        count = len(indices)
        draws = self._draw_views(count)
        mine = torch.arange(count)
        mine = mine[distributed.share(count)] if count >= distributed.world() else mine
        parts = mine.split(self.batch_size)
        batches = []
        with evaluating(self.model):
            for part, following in zip(parts, (*parts[1:], mine[:0]), strict=True):
                self.images.expect(indices[part])
                self.images.expect(indices[following])
                output = self._batch(indices[part], [view[part] for view in draws])
                batches.append(output if features else output._replace(features=None))
        joined = Output.cat(batches)
        return joined.map(lambda rows: distributed.all_gather(rows, count)) if len(mine) < count else joined

    def _draw_views(self, count: int) -> list[Tensor]:
        """Draw the augmentation of every view; an image's outputs do not depend on the images beside it."""
        if self.views == 1:
            return []
        generator = torch.Generator().manual_seed(0)
        height, width = self.images.shape[2:]
        draws = [VIEW.draw(1, height, width, generator) for _ in range(self.views)]
        return [draw.expand(count, *draw.shape[1:]) for draw in draws]

    def _batch(self, positions: Tensor, draws: Sequence[Tensor]) -> Output:
        if draws:
            return self._average(positions, draws)
        if not self.captured:
            return self._forward(positions)
        count = len(positions)
        padded = torch.cat([positions, positions[:1].expand(self.batch_size - count)])
        if self._graph is None:
            self._graph = self._capture(padded)
        return self._graph(padded).map(lambda rows: rows[:count].clone())

    def _forward(self, positions: Tensor) -> Output:
        return self._pass(load(self.images, positions, self.preprocessing, self.device))

    def _pass(self, inputs: Tensor) -> Output:
        with arithmetic(self.precision, self.device):
            output = Output.of(self._network(channels_last(inputs)))
            return output._replace(branches=None)  # which only training reads

    def _average(self, positions: Tensor, draws: Sequence[Tensor]) -> Output:
        """Return the mean outputs over views, augmented by their draws (N, …)."""
        pixels = self.images.gather(positions, self.device).float() / 255
        varied = (VIEW.apply(pixels, view.to(self.device), self.preprocessing.size) for view in draws)
        total = functools.reduce(Output.plus, (self._pass(self.preprocessing(view)) for view in varied))
        return total.map(lambda sums: sums / self.views)

    def _capture(self, positions: Tensor) -> Callable[[Tensor], Output]:
        """Capture a batch of this size; the returned function launches it."""
        inputs, stream, graph = positions.to(self.device), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._forward(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        with garbage_collection_paused(collect=True), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = self._forward(inputs)

        def launch(positions: Tensor) -> Output:
            inputs.copy_(positions.pin_memory(), non_blocking=True)
            graph.replay()
            return output

        return launch


def infer(
    model: nn.Module,
    images: Images,
    indices: Tensor,
    preprocessing: Preprocessing,
    device: torch.device,
    views: int = 1,
) -> Output:
    """Return the outputs of a model for the images at `indices`, in this order, on the CPU, in full precision."""
    return Inference(model, images, preprocessing, device, views=views)(indices).map(Tensor.cpu)
