"""A method: a value that says what to split, how to descend, and what to minimise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from medic.methods.numbers import Numbers
from medic.methods.parts import ADVISORS, AVERAGES, CHANGES, LAYERS, PENALTIES
from medic.methods.search import Law, Rate
from medic.objectives import (
    Arpl,
    Cirl,
    ConfusingSamples,
    CrossMatch,
    Daml,
    EbilHads,
    Forward,
    HyProMeta,
    Loss,
    Objective,
    OneRing,
    Ova,
    ce,
)
from medic.strategies import Strategy
from medic.tasks import Grid
from medic.training import OptimizerName, Schedule


class Composition(NamedTuple):
    """What an objective is made of, and what goes with it."""

    losses: tuple[str, ...]
    heads: tuple[str, ...]
    """The heads that it trains, the usual one first."""
    score: str
    """What reads them."""
    kind: Callable[..., Objective] = Objective
    networks: Literal["one", "domain"] = "one"
    """Whether the model is one network, or one for every source domain."""


OBJECTIVES: Mapping[str, Composition] = {
    "ce": Composition(("ce",), ("close",), "cls"),
    "ce+ova": Composition(("ce", "ova"), ("separate", "shared"), "bcls"),
    "ova": Composition(("ova",), ("shared",), "bcls"),
    "arpl": Composition(("arpl",), ("reciprocal",), "max-logit"),
    "arpl-cs": Composition(("arpl",), ("reciprocal",), "max-logit", ConfusingSamples),
    "onering": Composition(("onering",), ("ring",), "reject"),
    "daml": Composition(("ce",), ("close",), "cls", Daml, networks="domain"),
    "ebil": Composition(("ce", "ova"), ("branches",), "bcls", EbilHads),
    "cirl": Composition(("ce",), ("close",), "cls", Cirl),
    "crossmatch": Composition(("ce", "ova"), ("separate", "shared"), "bcls", CrossMatch),
    "hyprometa": Composition(("ce", "ova"), ("prompted",), "bcls", HyProMeta),
}
"""Objectives by name."""


@dataclass(frozen=True)
class Training:
    """How a method is trained unless told otherwise. None leaves the choice to the benchmark or the optimizer."""

    optimizer: OptimizerName = "sgd"
    lr: float | Rate | None = None
    inner_lr: float | Rate | Literal["lr"] | None = None
    """The rate of the inner steps: None for the strategy's own, "lr" for the same as the outer one."""
    momentum: float = 0.9
    weight_decay: float = 5e-4 / 9
    """The authors' 5e-4 beside a gradient summed over t = 9 tasks; here `p.grad` is their mean."""
    schedule: Schedule = "step"
    head_lr_scale: float = 1.0
    images: int = 144
    """Images per iteration, over all tasks."""


@dataclass(frozen=True)
class Method:
    """One system, of the paper's tables or beside them.

    A run copies the grid and the strategy, which have state of their own.
    """

    name: str
    idea: str
    differs: str
    """What it differs in from plain training."""
    citation: str
    grid: Grid
    strategy: Strategy
    objective: str = "ce"
    forward: Forward = "step"
    training: Training = field(default_factory=Training)
    least_domains: int = 1
    """How many source domains it needs."""
    each_domain: bool = False
    """Whether every source domain is a split of its own, however many there are."""
    penalty: str | None = None
    change: str | None = None
    score: str | None = None
    """What reads its outputs, if not what goes with its objective."""
    advisor: str | None = None
    """What looks at the model now and then and changes what is drawn."""
    averaging: str | None = None
    layer: str | None = None
    backbone: str | None = None
    """The only backbone that it works with, if there is but one."""
    batch_norm: str = "local"
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Its own numbers on a benchmark, by name, where its authors have others there."""
    search: Mapping[str, Law] = field(default_factory=dict)
    """Where DomainBed's protocol searches for its own numbers."""
    experimental: bool = False
    """Whether parts of it are our reading of a publication that leaves them open."""
    least_batch: int = 3
    """The least exponent of 2 that it draws the images of a domain from; the largest is that of the data."""
    paper: str | None = None
    """The name of its row in the tables of the paper, if it has one; of several forms one has the row."""

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold its iterations, as far as its parts say; advisors are asked between them."""
        named = ((PENALTIES, self.penalty), (CHANGES, self.change), (LAYERS, self.layer))
        parts = [table[name] for table, name in named if name is not None]
        kinds = (part.func if isinstance(part, partial) else part for part in parts)
        return all(
            getattr(part, "capturable", True) for part in (OBJECTIVES[self.objective].kind, self.strategy, *kinds)
        )


def make_objective(
    name: str,
    ova_scale: float,
    forward: Forward = "step",
    numbers: Numbers | None = None,
    penalty: str | None = None,
    change: str | None = None,
) -> Objective:
    """The objective of a run, and its parts, by their names."""
    numbers = numbers or Numbers(None)
    losses: dict[str, Callable[[], Loss]] = {
        "ce": lambda: ce,
        "ova": lambda: Ova(ova_scale),
        "arpl": lambda: numbers.make("arpl", Arpl),
        "onering": lambda: numbers.make("onering", OneRing),
    }
    parts = OBJECTIVES[name]
    make = partial(
        parts.kind,
        [losses[part]() for part in parts.losses],
        penalties=[] if penalty is None else [numbers.make(penalty, PENALTIES[penalty])],
        forward=forward,
        change=None if change is None else numbers.make(change, CHANGES[change]),
    )
    return numbers.make(name, make)


def own_numbers(method: Method) -> dict[str, Any]:
    """The numbers of a method's own, by the names that `--hparams` knows them by, with their defaults."""
    numbers = Numbers(None)
    make_objective(method.objective, 1.0, method.forward, numbers, method.penalty, method.change)
    numbers.changed(method.name, method.strategy)
    named = ((LAYERS, method.layer), (AVERAGES, method.averaging), (ADVISORS, method.advisor))
    for table, name in named:
        if name is not None:
            numbers.make(name, table[name])
    return numbers.used
