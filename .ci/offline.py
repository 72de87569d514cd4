"""Hook of the site's build: refuse a page that would load anything from the network."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\s(?:src|srcset)=[\"']?(?:https?:)?//[^\s>]*"
    r"|<link\b[^>]*?\shref=[\"']?(?:https?:)?//[^\s>]*|@import\s[^;]*//[^;]*|url\([\"']?(?:https?:)?//[^)]*"
)


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Stop the build if a page has a script, style sheet, font or picture of another server."""
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} loads from the network: {found[0]}")
    return output
