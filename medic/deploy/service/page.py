"""The service's web page: one self-contained HTML file that only sends requests to `/predict`."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any


def make_page(data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the page and a content security policy that allows only its own style and script.

    `data` is passed to the script as JSON.
    """
    html = (files("medic.deploy.service") / "page.html").read_text(encoding="utf-8")
    digests = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests['script']}'; style-src 'sha256-{digests['style']}'; "
        "img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.replace("{{ data }}", json.dumps(data).replace("<", "\\u003c")), policy
