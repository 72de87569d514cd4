"""DAML, domain-augmented meta-learning (Shu et al. 2021): a network for every source domain."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, check_range
from medic.objectives.objective import Loss, Objective, Parts, Setup, classify
from medic.outputs import Output
from medic.tasks import Step


class Daml(Objective):
    """What S networks lose on S domains, a task each: in step 0 each on its own domain, in step 1 on the others.

    With L_m(d) the loss of network m on domain d, its risk is

        step 0:  L_m(m) + distill · T² KL(teacher ‖ softmax(z_m / T)) + mixup · M_m(alpha_own, alpha_other)
        step 1:  Σ_{d≠m} L_m(d) + mixup · M_m(alpha_other, alpha_own)

    The teacher of a sample is a constant: what the other networks say of it at the temperature T, mixed by weights from
    Dir(1, …, 1). M_m(a, b) is the cross-entropy of head m on features of network m and labels, one sample of every
    domain mixed by weights from a Dirichlet law with a for domain m and b for each other.
    """

    def __init__(
        self,
        losses: Sequence[Loss],
        *,
        temperature: float = 2.0,
        distill: float = 1.0,
        mixup: float = 3.0,
        alpha_own: float = 0.6,
        alpha_other: float = 0.2,
        **parts: Unpack[Parts],
    ) -> None:
        super().__init__(losses, **parts)
        check_range("DAML", distill=distill, mixup=mixup)
        check_range("DAML", above=True, temperature=temperature, alpha_own=alpha_own, alpha_other=alpha_other)
        self.temperature, self.distill, self.mixup = temperature, distill, mixup
        self.alphas = (alpha_own, alpha_other)

    def prepare(self, model: nn.Module, setup: Setup) -> None:
        """Check that every task has a network."""
        super().prepare(model, setup)
        _networks(model, setup.tasks)

    def risks(self, model: nn.Module, output: Output, step: Step) -> Tensor:
        """The risk of every network (S,); task d of the step must be of the domain of network d, all of one size."""
        count, networks = len(step.sizes), _networks(model, len(step.sizes))
        if len(set(step.sizes)) > 1:
            raise MedicError(f"DAML mixes samples of all domains: its tasks are of one size, not {step.sizes}")
        assert output.features is not None
        features = output.features.chunk(count, dim=1)
        said = [classify(network, own) for network, own in zip(networks, features, strict=True)]
        measure = super().risks
        losses = torch.stack([measure(model, own, step) for own in said])  # of every network on every domain
        if step.index == 0:
            logits = torch.stack([own.logits for own in said]).unflatten(1, (count, -1))
            plain = losses.diagonal() + self.distill * self._distillation(logits)
        else:
            same = torch.eye(count, dtype=torch.bool, device=losses.device)
            plain = torch.where(same, torch.zeros_like(losses), losses).sum(1)
        return plain + self.mixup * self._mixup(networks, features, step)

    def _distillation(self, logits: Tensor) -> Tensor:
        """T² KL(teacher ‖ student) (S,) of every domain's own network, from logits (network, domain, b, C)."""
        found = []
        for domain in range(len(logits)):
            student = logits[domain, domain] / self.temperature
            others = torch.stack([logits[network, domain] for network in range(len(logits)) if network != domain])
            teachers = (others.detach() / self.temperature).softmax(2)
            weights = dirichlet([1.0] * len(others), len(student), student)
            teacher = torch.einsum("bs,sbc->bc", weights, teachers)
            found.append(functional.kl_div(student.log_softmax(1), teacher, reduction="batchmean"))
        return self.temperature**2 * torch.stack(found)

    def _mixup(self, networks: Sequence[nn.Module], features: Sequence[Tensor], step: Step) -> Tensor:
        """M_m (S,) of every network, from the features (N, F) that each gives of all domains."""
        found = []
        domains, size = len(networks), step.sizes[0]
        near, far = self.alphas if step.index == 0 else self.alphas[::-1]
        for own, (network, given) in enumerate(zip(networks, features, strict=True)):
            weights = dirichlet([near if domain == own else far for domain in range(domains)], size, given)
            order = torch.rand(domains, size, device=given.device).argsort(1)
            logits = classify(network, mixed(given.unflatten(0, (domains, size)), order, weights)).logits
            labels = functional.one_hot(step.y, logits.shape[1]).to(logits).unflatten(0, (domains, size))
            found.append(functional.cross_entropy(logits, mixed(labels, order, weights)))
        return torch.stack(found)


def dirichlet(concentrations: Sequence[float], count: int, like: Tensor) -> Tensor:
    """Weights (count, S) from a Dirichlet law over S parts, of the type of `like` and where it is."""
    columns = [like.new_full((count, 1), value) for value in concentrations]
    # Not by torch.distributions, which asks the device whether they are positive.
    return torch._sample_dirichlet(torch.cat(columns, dim=1))


def mixed(values: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Σ_d w_nd v_{d, σ_d(n)} (b, K) of values (S, b, K), a permutation σ_d of each part (S, b) and weights (b, S)."""
    shuffled = values.gather(1, order[:, :, None].expand_as(values))
    return torch.einsum("bs,sbk->bk", weights, shuffled)


def _networks(model: nn.Module, tasks: int) -> list[nn.Module]:
    """The networks of a model, which must be as many as there are tasks."""
    networks = list(getattr(model, "networks", ()))
    if len(networks) != tasks or tasks < 2:
        raise MedicError(
            f"DAML has a network for every domain, two or more: {len(networks)} networks of "
            f"{type(model).__name__} and {tasks} tasks in a step do not fit; use medic.models.Ensemble"
        )
    return networks
