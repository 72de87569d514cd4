"""Common figure style: the column width of a paper, consistent font sizes and a colour-blind safe palette."""

import functools
import string
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from matplotlib import colors, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from medic.errors import check_choice
from medic.utils.files import atomic_write, writing

WIDTH = 3.5
"""Column width of the paper, in inches."""
LETTERS = 58, 40
"""Characters per title line for a panel as wide as the figure, and for panels side by side (in total)."""
FORMATS = ("png", "svg", "pdf")
PALETTE = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#f0e442")
"""The colours of Okabe and Ito (2008), except the one reserved for MEDIC++."""
FIXED = {"medic++": "#d55e00", "erm": "#7a7a85", "medic": "#e69f00", "fish": "#0072b2", "mldg": "#009e73"}
"""Fixed colours for methods, the same in every figure."""
KNOWN, WRONG, UNKNOWN = "#0072b2", "#d55e00", "#595964"
"""Colours for known or correct, wrong, and unknown images, also in reports. Purple and blue can look alike."""
SEQUENTIAL, DIVERGING = "inferno", "PuOr_r"
_LOOK: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "medic",
    "axes.grid": False,
    "image.interpolation": "nearest",
}

Draw = TypeVar("Draw", bound=Callable[..., Figure])


def styled(draw: Draw) -> Draw:
    """Decorate a drawing function so that it uses the common style."""

    @functools.wraps(draw)
    def drawn(*arguments: Any, **options: Any) -> Figure:
        with rc_context(_LOOK):
            return draw(*arguments, **options)

    return drawn  # type: ignore[return-value]


def new_figure(height: float) -> Figure:
    """Return an empty figure that is one column wide and `height` inches tall."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def method_colours(methods: Sequence[str]) -> list[str]:
    """Return a colour for each run, based on its method. Further runs of the same method are lighter."""
    free = [colour for colour in PALETTE if colour not in {FIXED[method] for method in methods if method in FIXED}]
    others = [method for method in dict.fromkeys(methods) if method not in FIXED]
    chosen = {**FIXED, **{method: free[index % len(free)] for index, method in enumerate(others)}}
    colours, count = [], dict.fromkeys(methods, 0)
    for method in methods:
        share = min(0.6, 0.3 * count[method])
        red, green, blue = ((1 - share) * channel + share for channel in colors.to_rgb(chosen[method]))
        colours.append(colors.to_hex((red, green, blue)))
        count[method] += 1
    return colours


def letter(axes: Axes, index: int, title: str) -> None:
    """Add a lettered title, such as `(a) title`, wrapped to the panel's width. `aa` follows `z`."""
    name, rest = "", index + 1
    while rest:
        rest, digit = divmod(rest - 1, 26)
        name = string.ascii_lowercase[digit] + name
    place = axes.get_subplotspec()
    columns = 1 if place is None else place.get_gridspec().ncols
    width = LETTERS[columns > 1] // columns
    axes.set_title(textwrap.fill(f"({name}) {title}", width, break_long_words=False), loc="left")


def check_format(path: Path) -> None:
    """Raise an error unless the file extension is a supported figure format."""
    check_choice("figure format", path.suffix.removeprefix(".").lower(), FORMATS, f"in {path}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format implied by the file extension. Identical figures produce identical bytes."""
    check_format(path)
    form, dated = path.suffix[1:].lower(), {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with rc_context(_LOOK), writing("figure", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            figure.savefig(file, format=form, metadata=dated.get(form))
