"""Which evaluation of a run counts: pure functions over records that do not show the target."""

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def shown(record: Record, targets: Sequence[int]) -> dict[str, Any]:
    """A record with nothing in it that was measured on a target domain, or on unknown classes."""
    hidden = {"target", "targets", "source"} | {f"env{t}_{part}_acc" for t in targets for part in ("in", "out")}
    return {key: value for key, value in record.items() if key not in hidden}


def select(records: Sequence[Record]) -> int:
    """The position of the record with the best pooled source-validation accuracy, the first on ties.

    Where weights were averaged, the record of the averaged ones is the result, and there is nothing to choose.
    """
    if records[-1].get("averaged"):
        return len(records) - 1
    return max(range(len(records)), key=lambda position: (records[position]["validation"]["acc"], -position))
