"""OneRing (Yang et al. 2022): unknown is the second best class of every known sample."""

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
    """C + 1 logits without bias, the last for unknown; every iteration starts with weight rows of length 1."""

    unknown = True

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.ring_head = nn.Linear(features, classes + 1, bias=False)
        nn.init.xavier_uniform_(self.ring_head.weight)

    def linear(self) -> LinearHead:
        """Return the weights of the logits of known classes."""
        weight = self.ring_head.weight[:-1]
        return LinearHead(weight, weight.new_zeros(len(weight)))

    @torch.no_grad()
    def renew(self) -> None:
        """Normalise the weight rows to length 1."""
        self.ring_head.weight.copy_(functional.normalize(self.ring_head.weight))

    def forward(self, features: Tensor) -> Output:
        """Return the logits of features (N, F)."""
        logits = self.ring_head(features)
        return Output(logits[:, :-1], features=features, unknown=logits[:, -1])


@dataclass(eq=False)
class OneRing(DeclaredModule):
    """Per sample `CE(o, y) + weight · CE(o without o_y, unknown)` over C + 1 outputs o."""

    weight: float = hyperparameter(1.0)
    needs = ("unknown",)

    def forward(self, output: Output, y: Tensor) -> Tensor:
        """Return the loss per sample (N,)."""
        if output.unknown is None:
            raise MedicError("the loss of OneRing needs an output for unknown: use --head ring")
        outputs = torch.cat([output.logits, output.unknown[:, None]], dim=1)
        others = outputs.scatter(1, y[:, None], -torch.inf)
        second = others.logsumexp(1) - output.unknown
        return functional.cross_entropy(outputs, y, reduction="none") + self.weight * second


OBJECTIVES["onering"] = ObjectiveKind((Part("onering", OneRing),), ("ring",), "reject")

METHODS = (
    Method(
        "onering",
        "unknown is the second best class of every known image",
        "head and objective: an output for unknown",
        "Yang et al. 2022",
        preset={"objective": "onering"},
        paper="OneRing",
    ),
)
