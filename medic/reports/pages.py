"""HTML pages. Each is a self-contained file with its own style, script and data, and makes no external requests."""

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
    """Write a page from the template and script called `name`.

    `data` is passed to the script as JSON, with NaN and infinities as null. `content` is passed to the template. Class
    and file names cannot inject code: the template escapes them, and the page allows no other scripts.
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
    """Encode float64 values as text that the script decodes without loss."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode()
