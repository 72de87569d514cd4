"""The memory of this process."""

import contextlib
import re
import resource
import sys
from pathlib import Path

_OWN = Path("/proc/self")


def forget_peak() -> None:
    """Let the peak begin anew, at what is held now; systems other than Linux know one of the whole process only."""
    with contextlib.suppress(OSError):
        (_OWN / "clear_refs").write_text("5")


def peak() -> int:
    """The most bytes that were held at once since the peak was forgotten."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB$", (_OWN / "status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return 1024 * int(found[1])
    unit = 1 if sys.platform == "darwin" else 1024  # systems disagree on it
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
