"""The description of a method: its grid, strategy, objective and settings."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from medic.objectives import Change, Forward
from medic.strategies import Joint, Strategy
from medic.tasks import GridSpec
from medic.training import Callback
from medic.utils.parts import Law, Part

SMALL = 32
"""Maximum side, in pixels, of DomainBed's small images."""


class Rate(NamedTuple):
    """Learning rates for small and large images, as in DomainBed. None means the benchmark's default."""

    small: float | None
    large: float | None

    def at(self, image_size: int) -> float | None:
        """Return the learning rate for images with a given side length in pixels."""
        return self.small if image_size <= SMALL else self.large


DOMAINBED_ADAM = Rate(small=1e-3, large=5e-5)


@dataclass(frozen=True)
class Method:
    """A method from the paper's tables, or an additional one.

    `preset` holds the `medic train` settings that differ from the defaults. A learning rate may be a `Rate`.
    """

    name: str
    idea: str
    differs: str
    """How the method differs from plain training."""
    citation: str
    _: KW_ONLY
    preset: Mapping[str, Any] = field(default_factory=dict)
    grid: GridSpec = field(default_factory=GridSpec)
    strategy: Part[Strategy] = field(default_factory=lambda: Part("joint", Joint))
    forward: Forward = "step"
    change: Part[Change] | None = None
    callback: Part[Callback] | None = None
    min_domains: int = 1
    """Minimum number of source domains."""
    each_domain: bool = False
    """Whether every source domain is a separate split."""
    backbone: str | None = None
    """The only supported backbone, or None if any backbone works."""
    search: Mapping[str, Law] = field(default_factory=dict)
    """DomainBed's search ranges for settings and strategy hyperparameters."""
    min_log2_batch: int = 3
    """Lower bound of log2(batch size) in DomainBed's search space."""
    experimental: bool = False
    """Whether parts of the method are our interpretation of an incomplete publication."""
    paper: str | None = None
    """Row name in the paper's tables, or None. Only one variant of a method has a row."""
