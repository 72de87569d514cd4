"""The run itself: its method and the seed of its random draws."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from medic.config.fields import PathLike, setting
from medic.utils.parts import NONNEGATIVE


class RunSettings(TypedDict, total=False):
    """Settings for the run as a whole. All of them are optional."""

    method: Annotated[str, setting("what to train (`medic methods` lists them)", "medic++")]
    imports: Annotated[
        list[str],
        setting(
            "Python file or module to execute first, which may register methods, penalties, datasets and scores",
            local=True,
            takes="FILE|MODULE",
        ),
    ]
    seed: Annotated[int, setting("root of all random draws", 0, limits=NONNEGATIVE, takes="N")]
    extend: Annotated[
        PathLike, setting("finished run to continue to more --iterations, with its other settings", takes="RUN")
    ]
    protocol: Annotated[
        Literal["paper", "authors"],
        setting(
            "settings of the paper's experiments: paper, as in its text, or authors, as in their code",
            default_rule="neither",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The method of a run, and the seed of its random draws."""

    method: str
    imports: list[str] | None
    seed: int
    extend: str | None
    protocol: Literal["paper", "authors"] | None
