"""The fast path on a GPU: a whole iteration as one CUDA graph."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from medic.errors import MedicError, first_line
from medic.training.iteration import Batch, Iteration, Outcome

Capture = Literal["auto", "on", "off"]
WARM_UP = 3
"""Iterations that are run before one is captured: real ones, on a stream of their own, as libraries want it."""
GRAPHS = 8
"""How many shapes of an iteration are captured; further ones run eagerly."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Collect no garbage inside: freeing an old graph or event would spoil the one that is being captured."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Captured:
    """An iteration that is launched as one graph from its fourth time on; until then, and if it cannot be, eagerly.

    Learning rates are tensors on the device, so nothing has to be captured again when they change; an iteration of
    other task sizes gets a graph of its own.
    """

    def __init__(
        self,
        iteration: Iteration,
        mode: Capture,
        state: Callable[[], dict[str, Any]],
        restore: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self.iteration, self.mode, self._say = iteration, mode, say
        self._state, self._restore = state, restore
        self._graphs: dict[tuple[tuple[int, ...], ...], tuple[torch.cuda.CUDAGraph, Batch, Outcome]] = {}
        self._stream = torch.cuda.Stream()
        self._runs = 0

    def __call__(self, batch: Batch) -> Outcome:
        """Do one iteration with a batch on the host."""
        self._runs += 1
        if self.mode == "off" or self._runs <= WARM_UP:
            return self._eager(batch)
        if batch.sizes not in self._graphs and (len(self._graphs) >= GRAPHS or not self._capture(batch)):
            return self._eager(batch)
        graph, inputs, outcome = self._graphs[batch.sizes]
        inputs.copy_(batch)
        graph.replay()
        return outcome

    def _eager(self, batch: Batch) -> Outcome:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            outcome = self.iteration(batch.to(self.iteration.device))
        torch.cuda.current_stream().wait_stream(self._stream)
        return outcome

    def _capture(self, batch: Batch) -> bool:
        """Record an iteration; if that fails, put everything back and say which part cannot be recorded."""
        before = self._state()
        inputs, graph = batch.to(self.iteration.device), torch.cuda.CUDAGraph()
        try:
            with undisturbed(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outcome = self.iteration(inputs)
        except (RuntimeError, AssertionError) as error:
            torch.cuda.synchronize()
            self._restore(before)
            reason = f"{self.iteration.part} cannot be captured as a CUDA graph: {first_line(error)}"
            if self.mode == "on":
                raise MedicError(f"{reason}; use --capture auto") from error
            self._say(f"{reason}; running eagerly")
            self.mode = "off"
            return False
        self._graphs[batch.sizes] = (graph, inputs, outcome)
        return True
