"""Micro-batches: images of many requests share a forward pass, behind a bounded queue."""

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
    """The queue has no room for the images of a request, or the service stops."""


class _Decoded(NamedTuple):
    """An image that waits for the model."""

    pixels: Pixels
    top: int
    answer: asyncio.Future[Prediction]


class Batcher:
    """Decides on images of concurrent requests. Use it with `async with`; leaving it answers what is queued.

    Images are decoded in a few threads. One more thread owns the model: it takes all images that are decoded, up to a
    batch. While it computes, the next batch gathers, so that batches grow with the load.
    """

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics) -> None:
        self.predictor = predictor
        self.limits = limits
        self.metrics = metrics
        self.window = Window(predictor)
        self.batch_size = predictor.most(limits.batch_size)
        self.queued = 0
        """Images that were accepted and are not answered."""
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
        """Raise `Full` if `count` more images cannot be accepted."""
        if self._stopping or self.queued + count > self.limits.queue:
            raise Full

    async def decide(self, images: Sequence[bytes], top: int) -> list[Prediction | BadImage]:
        """Return the decisions on the images of a request, in order; all of them are accepted, or `Full` is raised."""
        self.check_room(len(images))
        self.queued += len(images)
        self._decoding += len(images)
        self._idle.clear()
        tasks = [asyncio.create_task(self._decide(self._start(image), top)) for image in images]
        try:
            return await asyncio.gather(*tasks)
        finally:  # the request may have run out of time
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.queued -= len(images)
            if not self.queued:
                self._idle.set()

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread that decodes."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _start(self, image: bytes) -> "asyncio.Future[Pixels | BadImage]":
        """Start to decode an image; it counts as being decoded until that ends or is cancelled."""

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
        """Hand batches to the model, one at a time."""
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
            if batch := [image for image in batch if not image.answer.done()]:  # a request may have run out of time
                started = time.perf_counter()
                try:
                    predictions = await loop.run_in_executor(self._model, self._forward, batch)
                except Exception as error:  # whatever the model or the device raises is of these requests alone
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
