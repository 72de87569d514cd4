"""Notebook output."""

import html
import importlib
import sys
import time
from typing import Any

EVERY = 0.5
"""Minimum seconds between two updates of a progress bar."""


def in_notebook() -> bool:
    """Return whether the program runs in a notebook kernel, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar:
    """A progress bar below the running cell, updated in place. It does not require ipywidgets."""

    def __init__(self, title: str, start: int, total: int) -> None:
        ipython: Any = importlib.import_module("IPython.display")  # installed with every notebook
        self._html = ipython.HTML
        self._title, self._total, self._updated, self._state = title, total, 0.0, ""
        self._handle = ipython.display(self._html(self._drawn(start, "")), display_id=True)

    def update(self, completed: int, status: str, last: bool = False) -> None:
        """Show progress and status. Redraws at most twice a second, or when the first word of the status changes."""
        now, state = time.monotonic(), status.partition(" ")[0]
        if last or state != self._state or now - self._updated >= EVERY:
            self._updated, self._state = now, state
            self._handle.update(self._html(self._drawn(completed, status)))

    def _drawn(self, completed: int, status: str) -> str:
        text = html.escape(f"{completed}/{self._total}  {status}")
        bar = f'<progress value="{completed}" max="{self._total}"></progress>'
        return f"<div>{html.escape(self._title)} {bar} {text}</div>"
