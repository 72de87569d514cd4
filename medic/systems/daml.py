"""DAML: domain-augmented meta-learning (Shu et al. 2021), with one network per source domain."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError
from medic.objectives import CE, OBJECTIVES, Objective, ObjectiveKind, Setup
from medic.objectives.objective import classify, features_of
from medic.strategies import TwoStep
from medic.systems.base import Method, Rate
from medic.tasks import GridSpec, Step
from medic.utils.outputs import Output
from medic.utils.parts import Part, hyperparameter


@dataclass(eq=False)
class Daml(Objective):
    """The risks of S networks on S domains, one task per domain.

    Each network trains on its own domain in step 0 and on the other domains in step 1. With L_m(d) the loss of network
    m on domain d, its risk is

        step 0:  L_m(m) + distill · T² KL(teacher ‖ softmax(z_m / T)) + mixup · M_m(alpha_own, alpha_other)
        step 1:  Σ_{d≠m} L_m(d) + mixup · M_m(alpha_other, alpha_own)

    The teacher is the softmax of the other networks at temperature T, averaged with weights from Dir(1, …, 1). No
    gradient flows through it. M_m(a, b) is the cross-entropy of head m on mixed features and labels. Each mixture
    combines one sample from every domain, with Dirichlet weights: concentration a for domain m, and b for the others.
    """

    temperature: float = hyperparameter(2.0, above=True)
    distill: float = hyperparameter(1.0)
    mixup: float = hyperparameter(3.0)
    alpha_own: float = hyperparameter(0.6, above=True)
    alpha_other: float = hyperparameter(0.2, above=True)
    needs = ("features", "networks")

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Check that the model has one network per task."""
        super().prepare(model, setup)
        _networks(model, setup.tasks)

    def risks(self, model: nn.Module, output: Output, step: Step) -> Tensor:
        """Return the risk of each network, of shape (S,). Task d must hold domain d. Tasks must have equal sizes."""
        count, networks = len(step.sizes), _networks(model, len(step.sizes))
        if len(set(step.sizes)) > 1:
            raise MedicError(f"DAML requires tasks of equal size, got {step.sizes}")
        features = features_of(output).chunk(count, dim=1)
        outputs = [classify(network, own) for network, own in zip(networks, features, strict=True)]
        measure = super().risks
        losses = torch.stack([measure(model, own, step) for own in outputs])  # (networks, domains)
        if step.index == 0:
            logits = torch.stack([own.logits for own in outputs]).unflatten(1, (count, -1))
            plain = losses.diagonal() + self.distill * self._distillation(logits)
        else:
            same = torch.eye(count, dtype=torch.bool, device=losses.device)
            plain = losses.masked_fill(same, 0).sum(1)
        return plain + self.mixup * self._mixup(networks, features, step)

    def _distillation(self, logits: Tensor) -> Tensor:
        """Return T² KL(teacher ‖ student) per domain, of shape (S,), from logits of shape (network, domain, b, C)."""
        divergences = []
        for domain in range(len(logits)):
            student = logits[domain, domain] / self.temperature
            others = torch.stack([logits[network, domain] for network in range(len(logits)) if network != domain])
            teachers = (others.detach() / self.temperature).softmax(2)
            weights = dirichlet([1.0] * len(others), len(student), student)
            teacher = torch.einsum("bs,sbc->bc", weights, teachers)
            divergences.append(functional.kl_div(student.log_softmax(1), teacher, reduction="batchmean"))
        return self.temperature**2 * torch.stack(divergences)

    def _mixup(self, networks: Sequence[nn.Module], features: Sequence[Tensor], step: Step) -> Tensor:
        """Return M_m for each network, of shape (S,), from features of shape (N, F) for all domains."""
        losses = []
        domains, size = len(networks), step.sizes[0]
        near, far = (self.alpha_own, self.alpha_other)[:: 1 if step.index == 0 else -1]
        for own, (network, own_features) in enumerate(zip(networks, features, strict=True)):
            weights = dirichlet([near if domain == own else far for domain in range(domains)], size, own_features)
            order = torch.rand(domains, size, device=own_features.device).argsort(1)
            logits = classify(network, mixed(own_features.unflatten(0, (domains, size)), order, weights)).logits
            labels = functional.one_hot(step.y, logits.shape[1]).to(logits).unflatten(0, (domains, size))
            losses.append(functional.cross_entropy(logits, mixed(labels, order, weights)))
        return torch.stack(losses)


def dirichlet(concentrations: Sequence[float], count: int, like: Tensor) -> Tensor:
    """Draw weights of shape (count, S) from a Dirichlet distribution, with the dtype and device of `like`."""
    columns = [like.new_full((count, 1), value) for value in concentrations]
    # torch.distributions would synchronise with the GPU to check the concentrations.
    return torch._sample_dirichlet(torch.cat(columns, dim=1))


def mixed(values: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_d w_nd v_{d, σ_d(n)}, of shape (b, K).

    Values v have shape (S, b, K), permutations σ_d shape (S, b), and weights w shape (b, S).
    """
    shuffled = values.gather(1, order[:, :, None].expand_as(values))
    return torch.einsum("bs,sbk->bk", weights, shuffled)


def _networks(model: nn.Module, tasks: int) -> list[nn.Module]:
    """Return the networks of a model, and check that there is one per task."""
    networks = list(getattr(model, "networks", ()))
    if len(networks) != tasks or tasks < 2:
        raise MedicError(
            f"DAML requires one network per domain and at least two domains, but {type(model).__name__} has "
            f"{len(networks)} networks for {tasks} tasks: use medic.models.Ensemble"
        )
    return networks


OBJECTIVES["daml"] = ObjectiveKind((CE,), ("close",), "cls", Daml, networks="domain")

METHODS = (
    Method(
        "daml",
        "train one network per source domain, first on its own domain, then on the others",
        "model and objective: networks that teach each other on features mixed across domains",
        "Shu et al. 2021",
        # The authors use 1e-3 and 1e-4 with a gradient summed over the t = 6 tasks of three domains.
        preset={"objective": "daml", "lr": Rate(small=None, large=6e-3), "weight_decay": 1e-4 / 6},
        grid=GridSpec(3, steps=1, pairing="ordered", repeat=2),
        strategy=Part("daml", TwoStep),
        forward="task",
        min_domains=2,
        each_domain=True,
    ),
)
