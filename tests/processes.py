"""Processes that a test looks for or starts."""

import multiprocessing
import os
import sys
from collections.abc import Callable

import psutil


def descendants(pid: int, wanted: str) -> list[psutil.Process]:
    """Return the living processes below one whose command line contains `wanted`, oldest first."""
    matches = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if wanted in " ".join(process.cmdline()):
                matches.append(process)
        except psutil.NoSuchProcess:  # it ended meanwhile; a zombie is one of these
            continue
    return matches


def in_child(function: Callable[[], int], prepare: Callable[[], None]) -> tuple[int | None, str]:
    """Call a function in a forked process, after `prepare`; return its exit code and what it printed."""
    here, there = os.pipe()

    def run() -> None:
        sys.stdout = sys.stderr = os.fdopen(there, "w", buffering=1)
        prepare()
        os._exit(function())

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    os.close(there)
    with os.fdopen(here) as printed:
        text = printed.read()
    process.join()
    return process.exitcode, text


def drop_root() -> None:
    """Let permissions apply to this process: those of files do not to root's."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
