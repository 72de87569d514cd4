"""Several networks that answer as one."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from medic.models.backbones import Backbone
from medic.models.classifier import Classifier, Norms
from medic.outputs import Output


class Ensemble(nn.Module):
    """Classifiers over the same C known classes, whose mean softmax is what is said of an input.

    Features are those of all networks side by side. Of what a head says beside close-set logits nothing is kept.
    """

    def __init__(self, networks: Sequence[Classifier]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.classes = networks[0].classes
        self.features = sum(network.features for network in networks)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to what the networks say of them together."""
        return _joined([network(x) for network in self._members])

    def classify(self, features: Tensor) -> Output:
        """What the heads say together of features (N, F), those of all networks side by side."""
        own = features.split([network.features for network in self._members], dim=1)
        return _joined([network.classify(part) for network, part in zip(self._members, own, strict=True)])

    def body(self) -> list[nn.Parameter]:
        """The parameters of all backbones."""
        return [parameter for network in self._members for parameter in network.body()]

    def heads(self) -> list[nn.Parameter]:
        """The parameters of all heads, for a rate of their own."""
        return [parameter for network in self._members for parameter in network.heads()]

    @property
    def norms(self) -> Norms:
        """What becomes of batch-norm statistics in training, of all networks alike."""
        return self._members[0].norms

    @norms.setter
    def norms(self, norms: Norms) -> None:
        for network in self._members:
            network.norms = norms

    @property
    def _members(self) -> list[Classifier]:
        return cast(list[Classifier], list(self.networks))


def _joined(outputs: Sequence[Output]) -> Output:
    """Logits z with softmax z = mean_m softmax z_m, and features side by side.

    A softmax leaves a constant per sample open: log Σ exp z is the mean of log Σ exp z_m, so that energies keep their
    meaning, and one network says what it says alone.
    """
    logits = torch.stack([output.logits for output in outputs])
    log_mean = logits.log_softmax(2).logsumexp(0) - math.log(len(outputs))
    features = [output.features for output in outputs if output.features is not None]
    return Output(log_mean + logits.logsumexp(2).mean(0)[:, None], features=torch.cat(features, dim=1))


def assemble(backbones: Sequence[Backbone], classes: int, head: str) -> Classifier | Ensemble:
    """A model of a backbone over C classes, or of several: each with a head of its own, drawn one after the other."""
    networks = [Classifier(backbone, classes, head) for backbone in backbones]
    return networks[0] if len(networks) == 1 else Ensemble(networks)
