"""The fast path on a GPU: a whole iteration as one CUDA graph."""

import logging
from typing import Literal

import torch

from medic.errors import MedicError, first_line
from medic.strategies import Update
from medic.training.iteration import Batch, Iteration
from medic.utils.memory import garbage_collection_paused

logger = logging.getLogger(__name__)

Capture = Literal["auto", "on", "off"]
WARM_UP = 3
"""Iterations that run eagerly, on a dedicated stream, before one is captured."""
GRAPHS = 8
"""The number of iteration shapes that are captured; further ones run eagerly."""


class Captured:
    """An iteration that is replayed as one CUDA graph from the fourth call on, or runs eagerly if capture fails.

    Learning rates are tensors on the device, so that changing them needs no new capture. Iterations with other task
    sizes get their own graphs.
    """

    def __init__(self, iteration: Iteration, mode: Capture) -> None:
        self.iteration, self.mode = iteration, mode
        self._graphs: dict[tuple[tuple[int, ...], ...], tuple[torch.cuda.CUDAGraph, Batch, Update]] = {}
        self._stream = torch.cuda.Stream()
        self._runs = 0

    def __call__(self, batch: Batch) -> Update:
        """Run one iteration with a batch on the host."""
        self._runs += 1
        if self.mode == "off" or self._runs <= WARM_UP:
            return self._eager(batch)
        if batch.sizes not in self._graphs and (len(self._graphs) >= GRAPHS or not self._capture(batch)):
            return self._eager(batch)
        graph, inputs, update = self._graphs[batch.sizes]
        inputs.copy_(batch)
        graph.replay()
        return update

    def reset(self) -> None:
        """Forget the captured graphs, because an iteration computes something else from now on."""
        torch.cuda.synchronize()
        self._graphs.clear()
        self._runs = 0

    def _eager(self, batch: Batch) -> Update:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            update = self.iteration(batch.to(self.iteration.device))
        torch.cuda.current_stream().wait_stream(self._stream)
        return update

    def _capture(self, batch: Batch) -> bool:
        """Capture an iteration; if that fails, restore the state and name the part that cannot be captured."""
        before = self.iteration.updater.state_dict()
        inputs, graph = batch.to(self.iteration.device), torch.cuda.CUDAGraph()
        try:
            # Freeing an old graph or event would break a capture.
            with garbage_collection_paused(collect=True), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                update = self.iteration(inputs)
        except (RuntimeError, AssertionError) as error:
            torch.cuda.synchronize()
            self.iteration.updater.load_state_dict(before)
            reason = f"{self.iteration.updater.part} cannot be captured as a CUDA graph: {first_line(error)}"
            if self.mode == "on":
                raise MedicError(f"{reason}; use --capture auto") from error
            logger.info("%s; running eagerly", reason)
            self.mode = "off"
            return False
        self._graphs[batch.sizes] = (graph, inputs, update)
        return True
