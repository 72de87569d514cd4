"""OneRing (Yang et al. 2022): unknown is the second most likely class for every known sample."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError
from medic.models.heads import Head
from medic.objectives import OBJECTIVES, ObjectiveKind
from medic.systems.base import Method
from medic.utils.modules import DeclaredModule
from medic.utils.outputs import LinearHead, Output
from medic.utils.parts import Part, hyperparameter


class Ring(Head, name="ring"):
    """A head with C + 1 logits, the last for unknown. It has no bias, and each iteration normalises its weight rows."""

    unknown = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.ring_head = nn.Linear(features, classes + 1, bias=False)
        nn.init.xavier_uniform_(self.ring_head.weight)

    def linear(self) -> LinearHead:
        """Return the weights for the logits of known classes."""
        weight = self.ring_head.weight[:-1]
        return LinearHead(weight, weight.new_zeros(len(weight)))

    @torch.no_grad()
    def renew(self) -> None:
        """Normalise the weight rows to length 1."""
        self.ring_head.weight.copy_(functional.normalize(self.ring_head.weight))

    def forward(self, features: Tensor) -> Output:
        """Return logits for features of shape (N, F)."""
        logits = self.ring_head(features)
        return Output(logits[:, :-1], features=features, unknown=logits[:, -1])


@dataclass(eq=False)
class OneRing(DeclaredModule):
    """The OneRing loss: `CE(o, y) + weight · CE(o without o_y, unknown)` per sample, over C + 1 outputs o."""

    weight: float = hyperparameter(1.0)
    needs = ("unknown",)

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return one loss per sample, of shape (N,)."""
        if output.unknown is None:
            raise MedicError("objective 'onering' requires --head ring")
        outputs = torch.cat([output.logits, output.unknown[:, None]], dim=1)
        others = outputs.scatter(1, y[:, None], -torch.inf)
        second = others.logsumexp(1) - output.unknown
        return functional.cross_entropy(outputs, y, reduction="none") + self.weight * second


OBJECTIVES["onering"] = ObjectiveKind((Part("onering", OneRing),), ("ring",), "reject")

METHODS = (
    Method(
        "onering",
        "make unknown the second most likely class of every known image",
        "head and objective: one extra logit for unknown",
        "Yang et al. 2022",
        preset={"objective": "onering"},
        paper="OneRing",
    ),
)
