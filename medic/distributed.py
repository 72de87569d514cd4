"""Several processes that compute one update together: what they add up, and what they agree on.

Without a process group every function does nothing, so that the same code runs in one process.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from medic.errors import MedicError


def world() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is; 0 writes."""
    return dist.get_rank() if world() > 1 else 0


@contextmanager
def group() -> Iterator[None]:
    """Join the processes that `torchrun` started, if it did; each takes the GPU of its number, where there are any."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or world() > 1:
        yield
        return
    if torch.cuda.is_available():
        local = int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise MedicError(
                f"{local + 1} processes on this machine need as many GPUs: it has {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        dist.barrier()  # one that leaves before the others aborts now and then
    finally:
        dist.destroy_process_group()


def share(count: int) -> slice:
    """Which of `count` things are this process's."""
    return slice(rank(), count, world())


def all_reduce(tensors: Sequence[Tensor | None]) -> None:
    """Replace tensors by their sums over all processes, in one message per type of number."""
    present = [tensor for tensor in tensors if tensor is not None]
    if world() == 1 or not present:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in present):  # in the same order everywhere
        same = [tensor for tensor in present if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        dist.all_reduce(flat)
        parts = [
            part.view(tensor.shape) for part, tensor in zip(flat.split([t.numel() for t in same]), same, strict=True)
        ]
        torch._foreach_copy_([tensor.detach() for tensor in same], parts)


def all_reduced(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, through which gradients flow back to each."""
    if world() == 1:
        return tensor
    from torch.distributed.nn.functional import all_reduce

    summed: Tensor = all_reduce(tensor)
    return summed


def any_rank(happened: bool) -> bool:
    """Whether something happened in any process: all of them get the same answer."""
    if world() == 1:
        return happened
    flag = torch.tensor([float(happened)])
    dist.all_reduce(flag)
    return bool(flag > 0)


def barrier() -> None:
    """Go on when every process is here."""
    if world() > 1:
        dist.barrier()


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Give every process the values that the first has."""
    if world() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def all_gather(shared: Tensor, count: int) -> Tensor:
    """Join rows that the processes computed of their `share` of `count`: (count, …), in every process."""
    if world() == 1:
        return shared
    most = -(-count // world())
    padded = shared.new_zeros(most, *shared.shape[1:])
    padded[: len(shared)] = shared
    rows = [torch.empty_like(padded) for _ in range(world())]
    dist.all_gather(rows, padded)
    return torch.stack(rows, dim=1).flatten(0, 1)[:count]
