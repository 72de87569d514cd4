"""Micro-batching: images from concurrent requests share forward passes, behind a bounded queue."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch

from medic.data.decode import BadImage
from medic.data.inputs import Pixels
from medic.deploy.predictor import Prediction, Predictor
from medic.deploy.service.limits import DECODERS, Limits
from medic.deploy.service.metrics import Metrics
from medic.deploy.service.window import Window

T = TypeVar("T")


class Full(Exception):
    """The queue has no room for a request's images, or the service is stopping."""


class _Decoded(NamedTuple):
    """A decoded image that is waiting for the model."""

    pixels: Pixels
    top: int
    answer: asyncio.Future[Prediction]


class Batcher:
    """Classifies images from concurrent requests. Use it with `async with`; on exit, it waits for queued images.

    A few threads decode images. A separate thread runs the model on all images decoded so far, up to the batch size.
    The next batch fills up during the forward pass, so batches grow with the load.
    """

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics) -> None:
        self.predictor = predictor
        self.limits = limits
        self.metrics = metrics
        self.window = Window(predictor)
        self.batch_size = predictor.most(limits.batch_size)
        self.queued = 0
        """Images accepted but not yet answered."""
        self._decoding = 0
        self._stopping = False

    async def __aenter__(self) -> Self:
        self._pool = ThreadPoolExecutor(DECODERS, thread_name_prefix="decode")
        self._model = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._decoded: asyncio.Queue[_Decoded] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._idle.wait()
        self._loop.cancel()
        for pool in (self._pool, self._model):
            pool.shutdown(wait=False, cancel_futures=True)

    def check_room(self, count: int) -> None:
        """Raise `Full` if the queue has no room for `count` more images."""
        if self._stopping or self.queued + count > self.limits.queue:
            raise Full

    async def decide(self, images: Sequence[bytes], top: int) -> list[Prediction | BadImage]:
        """Classify the images of a request, in order. Raises `Full` unless all of them fit into the queue."""
        self.check_room(len(images))
        self.queued += len(images)
        self._decoding += len(images)
        self._idle.clear()
        tasks = [asyncio.create_task(self._decide(self._start(image), top)) for image in images]
        try:
            return await asyncio.gather(*tasks)
        finally:  # the request may have timed out
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.queued -= len(images)
            if not self.queued:
                self._idle.set()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a decoding thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _start(self, image: bytes) -> "asyncio.Future[Pixels | BadImage]":
        """Start decoding an image, and count it as being decoded until it finishes or is cancelled."""

        def ended(_: object) -> None:
            self._decoding -= 1

        decoded = asyncio.get_running_loop().run_in_executor(self._pool, self.predictor.read, image, self.limits.pixels)
        decoded.add_done_callback(ended)
        return decoded

    async def _decide(self, decoded: "asyncio.Future[Pixels | BadImage]", top: int) -> Prediction | BadImage:
        pixels = await decoded
        if isinstance(pixels, BadImage):
            return pixels
        answer: asyncio.Future[Prediction] = asyncio.get_running_loop().create_future()
        self._decoded.put_nowait(_Decoded(pixels, top, answer))
        return await answer

    async def _serve(self) -> None:
        """Run the model on batches, one at a time."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._decoded.get()]
            until = loop.time() + self.limits.wait
            while len(batch) < self.batch_size and (self._decoding or not self._decoded.empty()):
                try:
                    async with asyncio.timeout_at(until):
                        batch.append(await self._decoded.get())
                except TimeoutError:
                    break
            if batch := [image for image in batch if not image.answer.done()]:  # requests may have timed out
                started = time.perf_counter()
                try:
                    predictions = await loop.run_in_executor(self._model, self._forward, batch)
                except Exception as error:  # an error in the model or the device affects only these requests
                    for image in batch:
                        if not image.answer.done():
                            image.answer.set_exception(error)
                    continue
                self.metrics.forward.observe(time.perf_counter() - started)
                self.metrics.batches.observe(len(batch))
                for image, prediction in zip(batch, predictions, strict=True):
                    if not image.answer.done():
                        image.answer.set_result(prediction)

    def _forward(self, batch: Sequence[_Decoded]) -> list[Prediction]:
        pixels = torch.from_numpy(np.stack([image.pixels for image in batch]))
        output = self.predictor.outputs(pixels)
        predictions = self.predictor.decide(output, max(image.top for image in batch))
        self.window.add(output)
        return [
            prediction._replace(top=prediction.top[: image.top])
            for image, prediction in zip(batch, predictions, strict=True)
        ]
