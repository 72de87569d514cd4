"""Scores by the nearest training images in feature space."""

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
    """The distance to the `k`-th nearest training sample (Sun et al. 2022), of features scaled to length 1.

    `features` (N, F) are those of the training set, unscaled and in their own type, which takes half the memory of
    float64 if they are float32.
    """

    features: Tensor
    k: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, k: int = 50) -> Self:
        """Keep the features of the training set; `k` is capped at N. The labels are checked but not used."""
        check_counts(k=k)
        output = CheckedOutput.of(output)
        read_training(output, label)
        features = read_features(output)
        return cls(
            features.clone(memory_format=torch.contiguous_format),
            torch.tensor(min(k, len(features)), device=features.device),
        )

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return −‖f/‖f‖ − t/‖t‖‖ (N,), from −2 to 0, with t the k-th nearest of the training features."""
        features = read_features(output, self.features.shape[1])
        own = self.to(features.device)
        return -_compare(features, len(self.features), int(self.k), own._distance)

    def _distance(self, features: Tensor, k: int, step: int) -> Tensor:
        """Return the distance (N,) of features of length 1 to the k-th nearest, in chunks of `step` training rows."""
        near = features.new_empty(len(features), 0)
        index = torch.empty_like(near, dtype=torch.int64)
        for start in range(0, len(self.features), step):
            bank = unit(self.features[start : start + step])
            # ‖f − t‖² = ‖f‖² − 2 (f·t − ‖t‖²/2)
            value, place = (features @ bank.T - bank.square().sum(dim=1) / 2).topk(min(k, len(bank)))
            near, index = torch.cat([near, value], dim=1), torch.cat([index, place + start], dim=1)
            near, chosen = near.topk(min(k, near.shape[1]))
            index = index.gather(1, chosen)
        # The product finds the neighbour; the difference gives the distance without the product's cancellation.
        distance: Tensor = torch.linalg.vector_norm(features - unit(self.features[index[:, -1]]), dim=1)
        return distance


@dataclass(frozen=True, eq=False)
class NNGuide(Fitted):
    """The energy, guided by the most similar training samples (Park et al. 2023).

    `bank` (N, F) are the training features, scaled to length 1 and multiplied by the energies of their samples. The
    guidance is the mean of the `k` largest products with the features of an image, scaled to length 1.
    """

    bank: Tensor
    k: Tensor

    @classmethod
    def fit(cls, output: AnyOutput, label: Values, *, k: int = 10) -> Self:
        """Keep the training features with their energies; `k` is capped at N. The labels are checked but not used."""
        check_counts(k=k)
        output = CheckedOutput.of(output)
        read_training(output, label)
        features = read_features(output)
        bank = unit(features) * energy(output).unsqueeze(1)
        return cls(bank.to(features.dtype), torch.tensor(min(k, len(bank)), device=bank.device))

    def __call__(self, output: AnyOutput) -> Tensor:
        """Return the energy of every sample times its guidance (N,)."""
        output = CheckedOutput.of(output)
        features = read_features(output, self.bank.shape[1])
        read_logits(output)
        own = self.to(features.device)
        return _compare(features, len(self.bank), int(self.k), own._guide) * energy(output)

    def _guide(self, features: Tensor, k: int, step: int) -> Tensor:
        """Return the mean of the k largest products (N,) with the bank, in chunks of `step` rows."""
        top = features.new_empty(len(features), 0)
        for part in self.bank.split(step):
            top = torch.cat([top, features @ part.double().T], dim=1)
            top = top.topk(min(k, top.shape[1])).values
        return top.mean(dim=1)


def _compare(features: Tensor, bank: int, k: int, measure: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """Return a measure (N,) of features (N, F), scaled to length 1, by their k nearest of a `bank` of so many rows.

    Both are compared in chunks. `measure` takes a part of the features, k, and the number of rows in a chunk.
    """
    step = rows_of(features.shape[1])
    rows = rows_of(max(features.shape[1], min(step, bank) + 2 * k))
    return torch.cat([measure(unit(part), k, step) for part in features.split(rows)])
