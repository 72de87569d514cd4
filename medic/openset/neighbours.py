"""Scores based on the nearest training images in feature space."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from medic.openset.fitting import (
    Fitted,
    check_counts,
    read_features,
    read_logits,
    read_training,
    rows_of,
    unit,
)
from medic.openset.scores import AnyOutput, CheckedOutput, Values, energy


@dataclass(frozen=True, eq=False)
class Nearest(Fitted):
    """The negative distance to the `k`-th nearest training sample, for features scaled to length 1 (Sun et al. 2022).

    `features`, of shape (N, F), contains the unscaled training features in their original dtype, which saves memory.
    """

    features: Tensor
    k: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, k: int = 50) -> Self:
        """Store the training features. `k` is capped at N. The labels are checked but not used."""
        check_counts(k=k)
        output = CheckedOutput.of(output)
        read_training(output, label)
        features = read_features(output)
        return cls(
            features.clone(memory_format=torch.contiguous_format),
            torch.tensor(min(k, len(features)), device=features.device),
        )

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −‖f/‖f‖ − t/‖t‖‖, of shape (N,), where t is the k-th nearest training feature. Ranges from −2 to 0."""
        features = read_features(output, self.features.shape[1])
        own = self.to(features.device)
        return -_compare(features, len(self.features), int(self.k), own._distance)

    def _distance(self, features: Tensor, k: int, step: int) -> Tensor:
        """Return the distance from unit-length features to the k-th nearest training feature, of shape (N,).

        Compares with `step` training rows at a time.
        """
        near = features.new_empty(len(features), 0)
        index = torch.empty_like(near, dtype=torch.int64)
        for start in range(0, len(self.features), step):
            bank = unit(self.features[start : start + step])
            # ‖f − t‖² = ‖f‖² − 2 (f·t − ‖t‖²/2)
            value, place = (features @ bank.T - bank.square().sum(dim=1) / 2).topk(min(k, len(bank)))
            near, index = torch.cat([near, value], dim=1), torch.cat([index, place + start], dim=1)
            near, chosen = near.topk(min(k, near.shape[1]))
            index = index.gather(1, chosen)
        # The product finds the neighbour. The difference gives its distance without cancellation.
        distance: Tensor = torch.linalg.vector_norm(features - unit(self.features[index[:, -1]]), dim=1)
        return distance


@dataclass(frozen=True, eq=False)
class NNGuide(Fitted):
    """The energy, guided by the most similar training samples (Park et al. 2023).

    `bank`, of shape (N, F), contains the training features, scaled to length 1 and multiplied by the energies of their
    samples. The guidance is the mean of the `k` largest dot products between `bank` and the unit-length features.
    """

    bank: Tensor
    k: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, k: int = 10) -> Self:
        """Store the training features with their energies. `k` is capped at N. The labels are checked but not used."""
        check_counts(k=k)
        output = CheckedOutput.of(output)
        read_training(output, label)
        features = read_features(output)
        bank = unit(features) * energy(output).unsqueeze(1)
        return cls(bank.to(features.dtype), torch.tensor(min(k, len(bank)), device=bank.device))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the energy of every sample times its guidance, of shape (N,)."""
        output = CheckedOutput.of(output)
        features = read_features(output, self.bank.shape[1])
        read_logits(output)
        own = self.to(features.device)
        return _compare(features, len(self.bank), int(self.k), own._guide) * energy(output)

    def _guide(self, features: Tensor, k: int, step: int) -> Tensor:
        """Return the mean of the k largest dot products with the bank, of shape (N,), `step` rows at a time."""
        top = features.new_empty(len(features), 0)
        for part in self.bank.split(step):
            top = torch.cat([top, features @ part.double().T], dim=1)
            top = top.topk(min(k, top.shape[1])).values
        return top.mean(dim=1)


def _compare(features: Tensor, bank: int, k: int, measure: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """Apply `measure` to features of shape (N, F) in chunks, and return the results, of shape (N,).

    `bank` is the number of training rows. `measure` receives a chunk of unit-length features, k, and the number of
    training rows to compare at a time.
    """
    step = rows_of(features.shape[1])
    rows = rows_of(max(features.shape[1], min(step, bank) + 2 * k))
    return torch.cat([measure(unit(part), k, step) for part in features.split(rows)])
