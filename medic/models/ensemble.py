"""A model that averages several networks."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from medic.models.backbones import Backbone
from medic.models.classifier import Classifier, Norms
from medic.utils.outputs import Output


class Ensemble(nn.Module):
    """An ensemble that averages the softmax of several classifiers over the same C known classes.

    It concatenates the features of all networks. Outputs other than features and closed-set logits are dropped.
    """

    def __init__(self, networks: Sequence[Classifier]) -> None:
        super().__init__()
        self.networks = cast(Sequence[Classifier], nn.ModuleList(networks))
        self.classes = networks[0].classes
        self.features = sum(network.features for network in networks)

    def forward(self, x: Tensor) -> Output:
        """Compute the combined outputs for inputs of shape (N, …)."""
        return _joined([network(x) for network in self.networks])

    def classify(self, features: Tensor) -> Output:
        """Return the combined outputs of all heads for features of shape (N, F), concatenated over the networks."""
        own = features.split([network.features for network in self.networks], dim=1)
        return _joined([network.classify(part) for network, part in zip(self.networks, own, strict=True)])

    def body(self) -> list[nn.Parameter]:
        """Return the parameters of all backbones."""
        return [parameter for network in self.networks for parameter in network.body()]

    def heads(self) -> list[nn.Parameter]:
        """Return the parameters of all heads, which may have a separate learning rate."""
        return [parameter for network in self.networks for parameter in network.heads()]

    @property
    def norms(self) -> Norms:
        """Policy for batch-norm statistics during training, the same for all networks."""
        return self.networks[0].norms

    @norms.setter
    def norms(self, norms: Norms) -> None:
        for network in self.networks:
            network.norms = norms


def _joined(outputs: Sequence[Output]) -> Output:
    """Return logits z with softmax z = mean_m softmax z_m, and concatenated features.

    The softmax determines z up to a constant per sample. The constant is chosen so that log Σ exp z is the mean of
    log Σ exp z_m. This keeps energies meaningful and leaves a single network unchanged.
    """
    logits = torch.stack([output.logits for output in outputs])
    log_mean = logits.log_softmax(2).logsumexp(0) - math.log(len(outputs))
    features = [output.features for output in outputs if output.features is not None]
    return Output(log_mean + logits.logsumexp(2).mean(0)[:, None], features=torch.cat(features, dim=1))


def assemble(backbones: Sequence[Backbone], classes: int, head: str, scaled: bool = False) -> Classifier | Ensemble:
    """Build a model from one or several backbones, each with its own head."""
    networks = [Classifier(backbone, classes, head, scaled) for backbone in backbones]
    return networks[0] if len(networks) == 1 else Ensemble(networks)
