"""Analysis results: numbers, table rows and notes."""

import base64
import dataclasses
import html
import importlib
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from medic.errors import MedicError
from medic.results.table import aligned, html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class MissingRuns(MedicError):
    """Raised if an analysis lacks the required runs. `medic reproduce TABLE` trains them."""

    def __init__(self, what: str, table: str) -> None:
        super().__init__(f"missing {what}: train them with `medic reproduce {table}`")
        self.what, self.table = what, table


@dataclass(frozen=True)
class Result(ABC):
    """Base class for analysis results. Subclasses are frozen dataclasses with plain values, arrays and dataclasses."""

    def __init_subclass__(cls) -> None:
        """Prevent `dataclass` from generating a `__repr__` that prints every array."""
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the table and the notes as text."""
        rows = self.rows()
        lines = aligned([list(rows[0]), *(list(row.values()) for row in rows)]) if rows else ()
        return "\n".join([*lines, *self.notes()])

    @abstractmethod
    def rows(self) -> list[dict[str, str]]:
        """Return a small table of formatted numbers, with the same keys in every row."""

    def notes(self) -> list[str]:
        """Return notes that explain the numbers, one line each."""
        return []

    def draw(self) -> "Figure":
        """Draw the figure."""
        return cast("Figure", importlib.import_module(type(self).__module__).draw(self))

    def _repr_html_(self) -> str:
        """Return the figure, the table and the notes as HTML for notebooks."""
        image = io.BytesIO()
        self.draw().savefig(image, format="png", bbox_inches="tight", dpi=120)
        parts = [f'<img src="data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}">']
        if rows := self.rows():
            parts.append(html_table([list(rows[0]), *(list(row.values()) for row in rows)]))
        return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in self.notes())])

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers in JSON-compatible form. Arrays become lists; NaN and infinities become None."""
        numbers: dict[str, Any] = plain(dataclasses.asdict(self))
        return {**numbers, "notes": self.notes()}


def plain(value: Any) -> Any:
    """Convert a value to JSON-compatible form. Arrays become lists; NaN and infinities become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mean_of(values: NDArray[np.float64]) -> float:
    """Return the mean of all values that are not NaN, or NaN if there are none."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else float("nan")


def number(value: float, digits: int = 2, sign: bool = False) -> str:
    """Format a number for a table; `–` stands for NaN."""
    return "–" if math.isnan(value) else f"{value:{'+' if sign else ''}.{digits}f}"


def percent(value: float) -> str:
    """Format a fraction as a percentage, without the percent sign."""
    return number(100 * value, 1)
