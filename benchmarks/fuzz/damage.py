"""Damage to bytes and to plain values."""

import random
import struct
from typing import Any

EXTREMES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
HEADER = 96
"""Bytes at the start of a file in which lengths and sizes usually are."""


def flip(data: bytes, position: int) -> bytes:
    """Flip the bit at a position, counted over all bytes."""
    changed = bytearray(data)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def damage(data: bytes, draw: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Return bytes with one to three kinds of damage; `others` are files to take pieces from."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = _damage_once(data, draw, others) or b"\0"
    return data


def _damage_once(data: bytes, draw: random.Random, others: tuple[bytes, ...]) -> bytes:
    start, stop = sorted((draw.randrange(len(data)), draw.randrange(len(data) + 1)))
    near = draw.randrange(min(len(data), HEADER))
    match draw.randrange(9):
        case 0:
            for _ in range(draw.randint(1, 8)):
                data = flip(data, draw.randrange(8 * len(data)))
            return data
        case 1:
            return data[:start]
        case 2:
            other = draw.choice(others) if others else data
            return data[:start] + other[draw.randrange(len(other)) :]
        case 3:
            return data[:start] + draw.randbytes(min(stop - start, 64)) + data[start + min(stop - start, 64) :]
        case 4:
            return data[:stop] + data[start:stop] + data[stop:]
        case 5:
            return data[:start] + data[stop:]
        case 6:  # a length in a header
            field = struct.pack(draw.choice("<>") + "I", draw.choice(EXTREMES))[: draw.choice((1, 2, 4, 4))]
            return data[:near] + field + data[near + len(field) :]
        case 7:
            return data[:near] + bytes([draw.randrange(256)]) + data[near + 1 :]
        case _:
            return data + draw.randbytes(draw.randint(1, 64))


def nested(depth: int) -> Any:
    """Return a list in a list in a list …"""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: tuple[Any, ...] = (
    None, True, "", "x", "\0", "../../x", "\ud800", "é" * 300, -1, 0, 1, 10**30, 10**400, 0.5, -1e308, float("nan"),
    float("inf"), [], {}, [None], ["x", 1], {"x": {"y": []}}, [[0.5]], {"": None}, nested(50), "[" * 5000, "x" * 10**5,
)  # fmt: skip
"""Values of all types, to put in the place of another."""


def replace_value(tree: Any, draw: random.Random) -> Any:
    """Return a plain value in which one part, at a random depth, is replaced, removed or added."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else []
    if not keys or draw.random() < 0.1:
        return draw.choice(VALUES)
    key, changed = draw.choice(list(keys)), tree.copy()
    if draw.random() < 0.15:
        del changed[key]
    elif draw.random() < 0.05 and isinstance(changed, dict):
        changed[draw.choice(("", "x", "\0", "é", "target"))] = draw.choice(VALUES)
    else:
        changed[key] = replace_value(tree[key], draw)
    return changed
