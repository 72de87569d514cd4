"""Who may see what: source domains for training and validation, the target for evaluation alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from medic.data.dataset import Dataset
from medic.errors import MedicError, check_choice

UNKNOWN = -1


@dataclass(frozen=True)
class Samples:
    """Some rows of a dataset: `indices` (N,), class among the known ones or -1 (N,), domain (N,)."""

    indices: Tensor
    label: Tensor
    domain: Tensor
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Further integer labels (N,) that a grid can split."""

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Problem:
    """One open set domain generalization problem.

    `train` and `validation` are of the source domains and hold known classes only. `target` holds every image of the
    target domain, with unknown classes as -1; only evaluation is given it. `held_out` (N_target,) marks the share of
    the target that would be its validation part, for DomainBed's bookkeeping.
    """

    known: tuple[str, ...]
    sources: tuple[int, ...]
    target_domain: int
    train: Samples
    validation: Samples
    target: Samples
    held_out: Tensor


def leave_one_out(
    domains: Sequence[str], target: str, sources: Sequence[str] | None = None
) -> tuple[tuple[int, ...], int]:
    """Positions in `domains` of the sources (all others, unless given) and of the target."""
    check_choice("domain", target, domains)
    if sources is None:
        sources = [domain for domain in domains if domain != target]
    if not sources:
        raise MedicError("no source domain to train on: give at least one")
    for source in sources:
        check_choice("domain", source, domains)
    if target in sources:
        raise MedicError(f"the target {target!r} is among the sources {', '.join(sources)}: it must not be trained on")
    return tuple(sorted({domains.index(source) for source in sources})), domains.index(target)


def make_problem(
    dataset: Dataset,
    target: str,
    known: Sequence[str],
    generator: torch.Generator,
    sources: Sequence[str] | None = None,
    holdout: float = 0.2,
) -> Problem:
    """Split a dataset: the share `holdout` of every (domain, class) cell of the sources is for validation."""
    source_ids, target_id = leave_one_out(dataset.domains, target, sources)
    for name in known:
        check_choice("class", name, dataset.classes)
    if len(set(known)) < 2:
        raise MedicError(f"{len(set(known))} known classes: there must be two or more to tell apart")
    ordered = tuple(name for name in dataset.classes if name in set(known))
    known_id = torch.tensor([ordered.index(name) if name in ordered else UNKNOWN for name in dataset.classes])
    label = known_id[dataset.label]
    held_out = _hold_out(dataset, holdout, generator)

    def samples(mask: Tensor) -> Samples:
        indices = mask.nonzero().squeeze(1)
        attributes = {name: values[indices] for name, values in dataset.attributes.items()}
        return Samples(indices, label[indices], dataset.domain[indices], attributes)

    source = torch.isin(dataset.domain, torch.tensor(source_ids)) & (label != UNKNOWN)
    problem = Problem(
        known=ordered,
        sources=source_ids,
        target_domain=target_id,
        train=samples(source & ~held_out),
        validation=samples(source & held_out),
        target=samples(dataset.domain == target_id),
        held_out=held_out[dataset.domain == target_id],
    )
    _check_covered(problem, dataset)
    return problem


def _hold_out(dataset: Dataset, share: float, generator: torch.Generator) -> Tensor:
    """Mark (N,) the share of each (domain, class) cell that is held out; a cell of one image keeps it for training."""
    held_out = torch.zeros(len(dataset.label), dtype=torch.bool)
    for domain in range(len(dataset.domains)):
        for label in range(len(dataset.classes)):
            cell = ((dataset.domain == domain) & (dataset.label == label)).nonzero().squeeze(1)
            order = cell[torch.randperm(len(cell), generator=generator)]
            held_out[order[: round(share * len(cell))]] = True
    return held_out


def _check_covered(problem: Problem, dataset: Dataset) -> None:
    """Every known class must have an image to train on; every split must have images."""
    seen = set(problem.train.label.tolist())
    for position, name in enumerate(problem.known):
        if position not in seen:
            raise MedicError(f"no source domain has an image of the known class {name!r} to train on")
    for what, samples in (("validation", problem.validation), ("target", problem.target)):
        if len(samples) == 0:
            raise MedicError(f"{dataset.name} leaves no {what} images: check the domains and the held-out share")
