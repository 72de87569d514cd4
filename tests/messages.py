"""Patterns for messages: the values and the options that they name, whatever the sentence around them."""

import re


def naming(words: str) -> str:
    """Return a pattern for `match=`: every one of the words occurs, in any order.

    A word ends where letters, digits and underscores end. A hyphen and an underscore inside it count as equal, so that
    `batch_size` is also found as `--batch-size`.
    """
    return "(?s)" + "".join(f"(?=.*{_whole(word)})" for word in words.split())


def _whole(word: str) -> str:
    pattern = re.sub(r"(?<=\w)(?:\\-|_)(?=\w)", "[-_]", re.escape(word))
    start = r"(?<!\w)" if re.match(r"\w", word) else ""
    end = r"(?!\w)" if re.search(r"\w$", word) else ""
    return start + pattern + end
