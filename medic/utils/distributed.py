"""Helpers for distributed training, where several processes compute each update together.

Without a process group, every function does nothing, so that the same code runs in a single process.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from medic.errors import MedicError, first_line


def world() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process. Only rank 0 writes files."""
    return dist.get_rank() if world() > 1 else 0


@contextmanager
def group() -> Iterator[None]:
    """Join the process group that `torchrun` started, if any. Each process uses the GPU with its local rank."""
    if _variable("WORLD_SIZE", 1) == 1 or world() > 1:
        yield
        return
    if torch.cuda.is_available():
        local = _variable("LOCAL_RANK", 0)
        if local >= torch.cuda.device_count():
            raise MedicError(
                f"{local + 1} processes require {local + 1} GPUs, but this machine has {torch.cuda.device_count()}: "
                "lower --nproc-per-node"
            )
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    except (ValueError, RuntimeError) as error:
        reason = first_line(error)
        way = "start the processes with torchrun, or unset WORLD_SIZE"
        raise MedicError(f"could not join the process group: {reason}; {way}") from error
    try:
        yield
        dist.barrier()  # a process that exits early can abort the others
    finally:
        dist.destroy_process_group()


def _variable(name: str, default: int) -> int:
    """Read an integer from an environment variable."""
    text = os.environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        way = "unset it, or start the processes with torchrun"
        raise MedicError(f"environment variable {name} must be a whole number, got {text!r}: {way}") from None


def share(count: int) -> slice:
    """Return the slice of `count` items that this process handles."""
    return slice(rank(), count, world())


def all_reduce(tensors: Sequence[Tensor | None]) -> None:
    """Sum tensors over all processes in place, with one message per data type."""
    present = [tensor for tensor in tensors if tensor is not None]
    if world() == 1 or not present:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in present):  # in the same order on all ranks
        same = [tensor.detach() for tensor in present if tensor.dtype == dtype]
        flat = _flatten_dense_tensors(same)
        dist.all_reduce(flat)
        torch._foreach_copy_(same, _unflatten_dense_tensors(flat, same))


def all_reduced(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes. Gradients flow back to every process."""
    if world() == 1:
        return tensor
    from torch.distributed.nn.functional import all_reduce

    summed: Tensor = all_reduce(tensor)
    return summed


def any_rank(happened: bool) -> bool:
    """Return whether `happened` is true on any rank. All ranks get the same answer."""
    count = torch.tensor([float(happened)])
    all_reduce([count])
    return bool(count > 0)


def is_lost_connection(error: RuntimeError) -> bool:
    """Return whether an error means that another process has exited. Gloo raises a plain `RuntimeError`."""
    if world() == 1:
        return False
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection closed" in str(error)


def barrier() -> None:
    """Wait for all processes."""
    if world() > 1:
        dist.barrier()


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Copy the values from rank 0 to all processes."""
    if world() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def from_first(text: str) -> str:
    """Return the text of rank 0 on all processes."""
    if world() == 1:
        return text
    texts = [text]
    dist.broadcast_object_list(texts, 0, device=torch.device("cpu"))
    return texts[0]


def all_gather(shared: Tensor, count: int) -> Tensor:
    """Gather the rows that each process computed for its share of `count` items, giving shape (count, …)."""
    if world() == 1:
        return shared
    most = -(-count // world())
    padded = shared.new_zeros(most, *shared.shape[1:])
    padded[: len(shared)] = shared
    rows = [torch.empty_like(padded) for _ in range(world())]
    dist.all_gather(rows, padded)
    return torch.stack(rows, dim=1).flatten(0, 1)[:count]
