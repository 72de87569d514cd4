"""Peak memory of this process, and pauses of the garbage collector."""

import contextlib
import gc
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_OWN = Path("/proc/self")


def reset_peak() -> None:
    """Reset the peak to the current memory use. Only Linux supports this; elsewhere, nothing happens."""
    with contextlib.suppress(OSError):
        (_OWN / "clear_refs").write_text("5")


def peak() -> int:
    """Return the peak memory use in bytes since the last reset."""
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB$", (_OWN / "status").read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match:
        return 1024 * int(match[1])
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, other systems kibibytes
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextlib.contextmanager
def garbage_collection_paused(collect: bool = False) -> Iterator[None]:
    """Pause the garbage collector inside the context. With `collect`, free all garbage first."""
    if collect:
        gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
