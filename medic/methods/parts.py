"""What methods are put together from, by name."""

from collections.abc import Callable, Mapping

from medic.objectives import Balance, Change, Coral, Fishr, GroupDro, Hgp, Hutchinson, Penalty, Rsc, VRex
from medic.training.averaging import Swad

PENALTIES: Mapping[str, Callable[..., Penalty]] = {
    "balance": Balance,
    "coral": Coral,
    "fishr": Fishr,
    "groupdro": GroupDro,
    "hgp": Hgp,
    "hutchinson": Hutchinson,
    "vrex": VRex,
}
"""Terms that are added to the risk of a step."""

CHANGES: Mapping[str, Callable[..., Change]] = {"rsc": Rsc}
"""What is done to the outputs of a model before they are measured."""

AVERAGES: Mapping[str, Callable[..., Swad]] = {"swad": Swad}
"""Which weights of a run are averaged."""
