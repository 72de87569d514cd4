"""A method: a frozen description of what to split, how to descend and what to minimise."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from medic.objectives import Change, Forward
from medic.strategies import Joint, Strategy
from medic.tasks import GridSpec
from medic.training import Callback
from medic.utils.parts import Law, Part

SMALL = 32
"""The side in pixels up to which images belong to DomainBed's small family."""


class Rate(NamedTuple):
    """A learning rate for each of DomainBed's two families of data; None leaves it to the benchmark."""

    small: float | None
    large: float | None

    def at(self, image_size: int) -> float | None:
        """Return the rate for images of this side in pixels."""
        return self.small if image_size <= SMALL else self.large


DOMAINBED_ADAM = Rate(small=1e-3, large=5e-5)


@dataclass(frozen=True)
class Method:
    """One system, of the paper's tables or beside them.

    `preset` holds the settings that differ from a run's defaults, as `medic train` knows them; a rate may be a `Rate`.
    """

    name: str
    idea: str
    differs: str
    """The difference from plain training."""
    citation: str
    _: KW_ONLY
    preset: Mapping[str, Any] = field(default_factory=dict)
    grid: GridSpec = field(default_factory=GridSpec)
    strategy: Part[Strategy] = field(default_factory=lambda: Part("joint", Joint))
    forward: Forward = "step"
    change: Part[Change] | None = None
    callback: Part[Callback] | None = None
    min_domains: int = 1
    """The least number of source domains."""
    each_domain: bool = False
    """Whether every source domain is a split, however many there are."""
    backbone: str | None = None
    """The only backbone that it works with, if there is one."""
    search: Mapping[str, Law] = field(default_factory=dict)
    """DomainBed's search ranges of its settings and of its strategy's hyperparameters."""
    min_log2_batch: int = 3
    """Lower bound of log2(batch size) in DomainBed's search space."""
    experimental: bool = False
    """Whether parts of it are our reading of a publication that leaves them open."""
    paper: str | None = None
    """Its row in the tables of the paper, if it has one; of several forms one has the row."""
