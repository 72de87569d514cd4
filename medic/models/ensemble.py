"""Several networks as one model."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from medic.models.backbones import Backbone
from medic.models.classifier import Classifier, Norms
from medic.utils.outputs import Output


class Ensemble(nn.Module):
    """Classifiers over the same C known classes, whose softmax is averaged.

    Features are those of all networks side by side. Outputs other than closed-set logits are dropped.
    """

    def __init__(self, networks: Sequence[Classifier]) -> None:
        super().__init__()
        self.networks = cast(Sequence[Classifier], nn.ModuleList(networks))
        self.classes = networks[0].classes
        self.features = sum(network.features for network in networks)

    def forward(self, x: Tensor) -> Output:
        """Map inputs (N, …) to the joint outputs."""
        return _joined([network(x) for network in self.networks])

    def classify(self, features: Tensor) -> Output:
        """Return the joint outputs of the heads for features (N, F), those of all networks side by side."""
        own = features.split([network.features for network in self.networks], dim=1)
        return _joined([network.classify(part) for network, part in zip(self.networks, own, strict=True)])

    def body(self) -> list[nn.Parameter]:
        """Return the parameters of all backbones."""
        return [parameter for network in self.networks for parameter in network.body()]

    def heads(self) -> list[nn.Parameter]:
        """Return the parameters of all heads, for a separate rate."""
        return [parameter for network in self.networks for parameter in network.heads()]

    @property
    def norms(self) -> Norms:
        """The policy for batch-norm statistics in training, the same for all networks."""
        return self.networks[0].norms

    @norms.setter
    def norms(self, norms: Norms) -> None:
        for network in self.networks:
            network.norms = norms


def _joined(outputs: Sequence[Output]) -> Output:
    """Return logits z with softmax z = mean_m softmax z_m, and features side by side.

    A softmax leaves a constant per sample open: log Σ exp z is set to the mean of log Σ exp z_m, so that energies keep
    their meaning and a single network is unchanged.
    """
    logits = torch.stack([output.logits for output in outputs])
    log_mean = logits.log_softmax(2).logsumexp(0) - math.log(len(outputs))
    features = [output.features for output in outputs if output.features is not None]
    return Output(log_mean + logits.logsumexp(2).mean(0)[:, None], features=torch.cat(features, dim=1))


def assemble(backbones: Sequence[Backbone], classes: int, head: str, scaled: bool = False) -> Classifier | Ensemble:
    """Make a model over C classes from one backbone or several, each with its own head."""
    networks = [Classifier(backbone, classes, head, scaled) for backbone in backbones]
    return networks[0] if len(networks) == 1 else Ensemble(networks)
