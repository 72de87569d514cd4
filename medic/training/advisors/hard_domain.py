"""Hard domain scheduling (EBiL-HaDS, Peng et al. 2024): the least reliable domain is apart from the others."""

from collections import Counter
from collections.abc import Mapping
from math import exp
from typing import TYPE_CHECKING, Any

import torch

from medic.errors import MedicError, check_range
from medic.objectives import EbilHads, Objective
from medic.tasks import Grid
from medic.training.advisors.base import Advisor
from medic.training.inference import Inference

if TYPE_CHECKING:
    from medic.training.trainer import Trainer

LEAST = 0.1
"""What the factor of a domain that was never chosen is."""


class HardDomain(Advisor):
    """Holds one domain apart in the grid: of all domains that which the follower trusts least, by `hardest`.

    It is shown `batches` batches of every domain, each of as many images as a task has and as many of each class. They
    are not augmented, and come from the same epochs as those that are trained on.
    """

    def __init__(self, every: int = 10, batches: int = 4, lam: float = 2e-4) -> None:
        check_range("hard domain scheduling", 1, every=every, batches=batches)
        check_range("hard domain scheduling", lam=lam)
        self.every, self.batches, self.lam = every, batches, lam
        self.chosen: Counter[int] = Counter()

    def check(self, objective: Objective, grid: Grid) -> None:
        """Refuse to choose a domain that nothing measures, or that the grid cannot hold apart."""
        if not isinstance(objective, EbilHads):
            raise MedicError("hard domain scheduling asks the follower of 'ebil': leave out --objective")
        if (grid.domains or 1) < 2:
            raise MedicError("hard domain scheduling holds a domain apart: use 2 domain splits or more")

    def advise(self, trainer: "Trainer") -> None:
        """Measure every domain, and hold the hardest."""
        grid, cells = trainer.grid, trainer.cells
        assert isinstance(trainer.objective, EbilHads)
        follower = trainer.objective.follower
        infer = Inference(follower, trainer.images, trainer.preprocessing, trainer.device, trainer.precision)
        means = {}
        for domain in sorted({cell[0] for cell in cells.keys}):
            own = [cell for cell in cells.keys if cell[0] == domain]
            drawn = torch.cat([grid.sample(cells, own, trainer.batch_size) for _ in range(self.batches)])
            means[domain] = float(infer(trainer.samples.indices[drawn]).logits.mean())
        grid.held = hardest(means, self.chosen, self.lam)
        self.chosen[grid.held] += 1

    def report(self) -> dict[str, float]:
        """How often every domain, by its number, was held apart so far."""
        total = max(1, sum(self.chosen.values()))
        return {f"held/{domain}": self.chosen[domain] / total for domain in sorted(self.chosen)}

    def state_dict(self) -> dict[str, Any]:
        """How often every domain was chosen."""
        return {"chosen": dict(self.chosen)}

    def load_state_dict(self, trainer: "Trainer", state: dict[str, Any]) -> None:
        """Go on where `state_dict` left off; the grid remembers what it holds."""
        self.chosen = Counter(state["chosen"])


def hardest(weights: Mapping[int, float], chosen: Mapping[int, int], lam: float) -> int:
    """The domain with the least exp(1 + w) (0.1 + lam · share): w its mean weight, share how often it was chosen."""
    total = max(1, sum(chosen.values()))
    return min(weights, key=lambda domain: exp(1 + weights[domain]) * (LEAST + lam * chosen.get(domain, 0) / total))
