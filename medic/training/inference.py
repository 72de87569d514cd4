"""Inference: apply a model to images in evaluation mode."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medic.data import Augmentation, Images
from medic.errors import first_line, is_shortage
from medic.models import Preprocessing
from medic.training.precision import Precision, arithmetic
from medic.utils import distributed
from medic.utils.memory import garbage_collection_paused
from medic.utils.modules import evaluating
from medic.utils.outputs import Output

logger = logging.getLogger(__name__)

VIEW = Augmentation(scale=(0.8, 1.0), flip=0.5)
"""Augmentation of the test-time views."""
BATCH = 32
LARGE_BATCH = 512
"""Batch size on a GPU, and for frozen features, which take little memory."""


def channels_last(inputs: Tensor) -> Tensor:
    """Convert images of shape (N, C, H, W) to the channels-last memory format. Return all other inputs unchanged."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def load(images: Images, positions: Tensor, preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """Load images as network inputs, without augmentation."""
    raw = images.gather(positions, device)
    return raw if raw.is_floating_point() else preprocessing(raw.float() / 255)  # frozen features need no preprocessing


@dataclass
class Inference:
    """A model applied to images, which computes features, logits and one-vs-all logits in one pass.

    With `captured`, which requires the images to be on the GPU, each batch launches a CUDA graph. The graph remains
    valid when training changes the weights. Call `reset` after replacing a layer. If capture fails, the network runs
    eagerly. `compiled` compiles the network first, which pays off for many images. Inference falls back to smaller
    batches when it runs out of memory.
    """

    model: nn.Module
    images: Images
    preprocessing: Preprocessing
    device: torch.device
    precision: Precision = "fp32"
    captured: bool = False
    compiled: bool = False
    views: int = 1
    """Number of random crops and flips to average over. All images use the same ones."""
    batch_size: int = 0
    """Number of images per forward pass. 0 means a large batch on a GPU and for frozen features, else a small one."""
    shared: bool = True
    """Whether all processes of distributed training share the work. Otherwise, the calling process does all of it."""
    on_images: Callable[[int], None] | None = None
    """Function called after launching each forward pass, with its number of images over all processes."""

    def __post_init__(self) -> None:
        large = self.device.type == "cuda" or self.images.shape[2:] == (1, 1)
        self.batch_size = self.batch_size or (LARGE_BATCH if large else BATCH)
        self._graph: Callable[[Tensor], Output] | None = None
        self._network = torch.compile(self.model, dynamic=False) if self.compiled else self.model

    @torch.no_grad()  # not inference_mode, because CUDA graphs overwrite their outputs
    def __call__(self, indices: Tensor, features: bool = True) -> Output:
        """Return the outputs for the images at `indices`, in order, on the device.

        Pass `features=False` to drop the features, which take up most of the memory.
        """
        while True:
            try:
                return self._infer(indices, features)
            except Exception as error:
                if not is_shortage(error) or self.batch_size == 1:
                    raise
            # Outside the handler: the exception would keep the tensors of the failed pass alive.
            self.batch_size //= 2
            self.reset()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            logger.warning("out of memory: continuing with a batch size of %d", self.batch_size)

    def reset(self) -> None:
        """Discard the captured graph, which would read the memory of replaced layers."""
        self._graph = None

    def _infer(self, indices: Tensor, features: bool) -> Output:
        count = len(indices)
        draws = self._draw_views(count)
        mine = torch.arange(count)
        mine = mine[distributed.share(count)] if self.shared and count >= distributed.world() else mine
        parts = mine.split(self.batch_size)
        batches = []
        with evaluating(self.model):
            for part, following in zip(parts, (*parts[1:], mine[:0]), strict=True):
                self.images.expect(indices[part])
                self.images.expect(indices[following])
                output = self._batch(indices[part], [view[part] for view in draws])
                batches.append(output if features else output._replace(features=None))
                if self.on_images is not None:
                    self.on_images(len(part) * count // len(mine))
        joined = Output.cat(batches)
        return joined.map(lambda rows: distributed.all_gather(rows, count)) if len(mine) < count else joined

    def _draw_views(self, count: int) -> list[Tensor]:
        """Draw the augmentation for each view. All images share it, so outputs do not depend on the batch."""
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
            try:
                self._graph = self._capture(padded)
            except RuntimeError as error:
                if is_shortage(error):
                    raise
                torch.cuda.synchronize()
                logger.info("evaluation cannot be captured as a CUDA graph: %s; running eagerly", first_line(error))
                self.captured = False
                return self._forward(positions)
        return self._graph(padded).map(lambda rows: rows[:count].clone())

    def _forward(self, positions: Tensor) -> Output:
        return self._pass(load(self.images, positions, self.preprocessing, self.device))

    def _pass(self, inputs: Tensor) -> Output:
        with arithmetic(self.precision, self.device):
            output = Output.of(self._network(channels_last(inputs)))
            return output._replace(branches=None)  # only training uses the branches

    def _average(self, positions: Tensor, draws: Sequence[Tensor]) -> Output:
        """Average the outputs over views. `draws` holds the augmentation of each view, of shape (N, …)."""
        pixels = self.images.gather(positions, self.device).float() / 255
        varied = (VIEW.apply(pixels, view.to(self.device), self.preprocessing.size) for view in draws)
        total = functools.reduce(Output.plus, (self._pass(self.preprocessing(view)) for view in varied))
        return total.map(lambda sums: sums / self.views)

    def _capture(self, positions: Tensor) -> Callable[[Tensor], Output]:
        """Capture a batch of this size, and return a function that launches the graph."""
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
    """Return a model's outputs for the images at `indices`, in order, on the CPU and in full precision."""
    return Inference(model, images, preprocessing, device, views=views)(indices).map(Tensor.cpu)
