"""Pages: one HTML file each, with its style, script and data inside, that opens anywhere and asks for nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from medic.analysis.result import plain
from medic.utils.files import write_text, writing

ASSETS = files("medic.reports") / "assets"


def write_page(path: Path, name: str, title: str, data: Mapping[str, Any], **content: Any) -> Path:
    """Write a page from the template and the script of this name.

    `data` reaches the script as JSON, in which NaN and infinities are null; `content` reaches the template. Names of
    classes or files are shown as text, whatever they contain: the template escapes it, and no other script may run.
    """
    script = "\n".join((ASSETS / file).read_text(encoding="utf-8") for file in ("charts.js", f"{name}.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("medic.reports", "assets"), autoescape=True, undefined=StrictUndefined
    )
    html = environment.get_template(f"{name}.html").render(
        title=title,
        style=Markup((ASSETS / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        digest=f"sha256-{digest}",
        data=Markup(json.dumps(plain(data), allow_nan=False).replace("<", "\\u003c")),
        **content,
    )
    with writing("report", path):
        write_text(path, html)
    return path


def packed(values: NDArray[Any]) -> str:
    """Return float64 values as text that the script reads without loss."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode()
