"""DAML, domain-augmented meta-learning (Shu et al. 2021): a network for every source domain."""

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
    """Risks of S networks on S domains, a task each: in step 0 on their own domain, in step 1 on the others.

    With L_m(d) the loss of network m on domain d, its risk is

        step 0:  L_m(m) + distill · T² KL(teacher ‖ softmax(z_m / T)) + mixup · M_m(alpha_own, alpha_other)
        step 1:  Σ_{d≠m} L_m(d) + mixup · M_m(alpha_other, alpha_own)

    The teacher of a sample is constant: the softmax of the other networks at temperature T, mixed by weights from
    Dir(1, …, 1). M_m(a, b) is the cross-entropy of head m on features of network m and labels, one sample of every
    domain mixed by weights from a Dirichlet distribution with a for domain m and b for each other.
    """

    temperature: float = hyperparameter(2.0, above=True)
    distill: float = hyperparameter(1.0)
    mixup: float = hyperparameter(3.0)
    alpha_own: float = hyperparameter(0.6, above=True)
    alpha_other: float = hyperparameter(0.2, above=True)
    needs = ("features", "networks")

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Refuse a model that has not one network per task."""
        super().prepare(model, setup)
        _networks(model, setup.tasks)

    def risks(self, model: nn.Module, output: Output, step: Step) -> Tensor:
        """Return the risk of every network (S,); task d must hold the domain of network d, all of one size."""
        count, networks = len(step.sizes), _networks(model, len(step.sizes))
        if len(set(step.sizes)) > 1:
            raise MedicError(f"DAML mixes samples of all domains, so its tasks must have one size, not {step.sizes}")
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
        """Return T² KL(teacher ‖ student) (S,) of every domain's own network, from logits (network, domain, b, C)."""
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
        """Return M_m (S,) of every network, from its features (N, F) of all domains."""
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
    """Draw weights (count, S) from a Dirichlet distribution, with the type and device of `like`."""
    columns = [like.new_full((count, 1), value) for value in concentrations]
    # torch.distributions would synchronise with the GPU to check that they are positive.
    return torch._sample_dirichlet(torch.cat(columns, dim=1))


def mixed(values: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_d w_nd v_{d, σ_d(n)} (b, K) of values (S, b, K), permutations σ_d (S, b) and weights (b, S)."""
    shuffled = values.gather(1, order[:, :, None].expand_as(values))
    return torch.einsum("bs,sbk->bk", weights, shuffled)


def _networks(model: nn.Module, tasks: int) -> list[nn.Module]:
    """Return the networks of a model, one per task."""
    networks = list(getattr(model, "networks", ()))
    if len(networks) != tasks or tasks < 2:
        raise MedicError(
            f"DAML needs a network per domain, two or more, but {type(model).__name__} has {len(networks)} networks "
            f"for {tasks} tasks: use medic.models.Ensemble"
        )
    return networks


OBJECTIVES["daml"] = ObjectiveKind((CE,), ("close",), "cls", Daml, networks="domain")

METHODS = (
    Method(
        "daml",
        "a network for every source domain, which learns its own domain, and then to serve the others",
        "model and objective: networks that teach each other, on features mixed between domains",
        "Shu et al. 2021",
        # The authors' 1e-3 and 1e-4 beside a gradient summed over the t = 6 tasks of three domains.
        preset={"objective": "daml", "lr": Rate(small=None, large=6e-3), "weight_decay": 1e-4 / 6},
        grid=GridSpec(3, steps=1, pairing="ordered", repeat=2),
        strategy=Part("daml", TwoStep),
        forward="task",
        min_domains=2,
        each_domain=True,
    ),
)
