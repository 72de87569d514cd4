"""Processes that a test looks for."""

import psutil


def descendants(pid: int, wanted: str) -> list[psutil.Process]:
    """Return the living processes below one whose command line contains `wanted`, oldest first."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if wanted in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:  # it ended meanwhile; a zombie is one of these
            continue
    return found
