"""Settings of the run as a whole: its method, seed and protocol."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from medic.config.fields import PathLike, setting
from medic.utils.parts import NONNEGATIVE


class RunSettings(TypedDict, total=False):
    """Settings for the run as a whole. All of them are optional."""

    method: Annotated[str, setting("method to train (`medic methods` lists all)", "medic++")]
    imports: Annotated[
        list[str],
        setting(
            "Python file or module to execute first; it may register methods, penalties, datasets and scores",
            local=True,
            takes="FILE|MODULE",
        ),
    ]
    seed: Annotated[int, setting("seed for all random numbers", 0, limits=NONNEGATIVE, takes="N")]
    extend: Annotated[
        PathLike, setting("finished run to train for more --iterations; its other settings are kept", takes="RUN")
    ]
    protocol: Annotated[
        Literal["paper", "authors"],
        setting(
            "settings of the paper's experiments: paper (as in the text) or authors (as in the authors' code)",
            default_rule="neither",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The method, seed and protocol of a run."""

    method: str
    imports: list[str] | None
    seed: int
    extend: str | None
    protocol: Literal["paper", "authors"] | None
