"""A run's evaluations, read from `results.jsonl`."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, overload


class Records(Sequence[dict[str, Any]]):
    """Sequence of a run's evaluations, each parsed on first use."""

    def __init__(self, lines: Sequence[bytes], errors_named: Callable[[], AbstractContextManager[None]]) -> None:
        self._lines, self._errors_named = lines, errors_named
        self._parsed: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        if position not in self._parsed:
            with self._errors_named():
                self._parsed[position] = json.loads(self._lines[position])
        return self._parsed[position]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)
