"""Capture a whole iteration as one CUDA graph."""

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
"""Number of iterations that run eagerly, on a dedicated stream, before capture."""
GRAPHS = 8
"""Maximum number of iteration shapes to capture. Further shapes run eagerly."""


class Captured:
    """An iteration that is replayed as one CUDA graph from the fourth call on, or runs eagerly if capture fails.

    Learning rates are tensors on the device, so changing them does not require a new capture. Each set of task sizes
    has its own graph.
    """

    def __init__(self, iteration: Iteration, mode: Capture) -> None:
        self.iteration, self.mode = iteration, mode
        self._graphs: dict[tuple[tuple[int, ...], ...], tuple[torch.cuda.CUDAGraph, Batch, Update]] = {}
        self._stream = torch.cuda.Stream()
        self._runs = 0

    def __call__(self, batch: Batch) -> Update:
        """Run one iteration on a batch that is on the host."""
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
        """Discard the captured graphs. Call this when the computation of an iteration changes."""
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
        """Capture an iteration. If that fails, restore the state and report the part that cannot be captured."""
        before = self.iteration.updater.state_dict()
        inputs, graph = batch.to(self.iteration.device), torch.cuda.CUDAGraph()
        try:
            # Freeing an old graph or event would break the capture.
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
