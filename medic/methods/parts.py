"""What methods are put together from, by name."""

from collections.abc import Callable, Mapping
from functools import partial

from medic.models.aloft import Aloft
from medic.models.mixstyle import MixStyle
from medic.objectives import (
    Balance,
    Change,
    Coral,
    Fishr,
    GroupDro,
    Hgp,
    Hutchinson,
    Miro,
    Penalty,
    Rsc,
    Transport,
    VRex,
)
from medic.training.advisors import Advisor, HardDomain, Prototypes
from medic.training.averaging import Swad

PENALTIES: Mapping[str, Callable[..., Penalty]] = {
    "balance": Balance,
    "coral": Coral,
    "fishr": Fishr,
    "groupdro": GroupDro,
    "hgp": Hgp,
    "hutchinson": Hutchinson,
    "miro": Miro,
    "transport": Transport,
    "vrex": VRex,
}
"""Terms that are added to the risk of a step."""

CHANGES: Mapping[str, Callable[..., Change]] = {"rsc": Rsc}
"""What is done to the outputs of a model before they are measured."""

LAYERS: Mapping[str, Callable[..., MixStyle | Aloft]] = {
    "mixstyle": MixStyle,
    "aloft-e": partial(Aloft, "e"),
    "aloft-s": partial(Aloft, "s"),
}
"""What is put inside the backbone, for training."""

ADVISORS: Mapping[str, Callable[..., Advisor]] = {"hard-domain": HardDomain, "prototypes": Prototypes}
"""What looks at the model now and then, and changes what is drawn next."""

AVERAGES: Mapping[str, Callable[..., Swad]] = {"swad": Swad}
"""Which weights of a run are averaged."""
