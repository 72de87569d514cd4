"""Who may see what: source domains for training and validation, the targets for evaluation alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from medic.data.classes import ClassSplit
from medic.data.dataset import Dataset
from medic.data.holdout import Parts
from medic.errors import MedicError, check_choice, warn

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

    `train` and `validation` are of the source domains and hold known classes only. `target` holds the images of the
    target domains, with unknown classes as -1, and `source_unknown` those of unknown classes in the source domains: a
    class that is new, in a domain that is not. Only evaluation is given these two. `held_out` (N_target,) marks what
    would be the target's validation part, for DomainBed's bookkeeping.
    """

    known: tuple[str, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    train: Samples
    validation: Samples
    source_unknown: Samples
    target: Samples
    held_out: Tensor


def choose_domains(
    domains: Sequence[str], targets: Sequence[str] | None, sources: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sources and targets, in the order of `domains`; whichever is not given is all the others."""
    for domain in (*(targets or ()), *(sources or ())):
        check_choice("domain", domain, domains)
    if targets is None and sources is None:
        raise MedicError(f"no target given: choose the domain to test on, one of {', '.join(domains)}")
    if targets is None:
        targets = [domain for domain in domains if domain not in (sources or ())]
    if sources is None:
        sources = [domain for domain in domains if domain not in targets]
    both = [domain for domain in targets if domain in sources]
    if both:
        raise MedicError(f"the target {both[0]!r} is among the sources {', '.join(sources)}: it must not be trained on")
    if not sources:
        raise MedicError("no source domain to train on: give at least one")
    if not targets:
        raise MedicError("no target domain to test on: every domain is a source")
    return tuple(d for d in domains if d in sources), tuple(d for d in domains if d in targets)


def make_problem(
    dataset: Dataset,
    sources: Sequence[str],
    targets: Sequence[str],
    classes: ClassSplit,
    parts: Parts,
    on_empty: Literal["error", "warn"] = "error",
) -> Problem:
    """Divide a dataset between training, validation and evaluation.

    `on_empty` is what becomes of a source domain that has no image of a known class, and was not said to lack it.
    """
    known_id = torch.tensor([_position(name, classes.known) for name in dataset.classes])
    unknown = torch.tensor([name in classes.unknown for name in dataset.classes])[dataset.label]
    label = known_id[dataset.label]
    known = label != UNKNOWN
    source, target = (
        torch.isin(dataset.domain, torch.tensor([dataset.domains.index(domain) for domain in names]))
        for names in (sources, targets)
    )
    trained = source & known & _allowed(dataset, classes)

    def samples(mask: Tensor) -> Samples:
        indices = mask.nonzero().squeeze(1)
        attributes = {name: values[indices] for name, values in dataset.attributes.items()}
        return Samples(indices, label[indices], dataset.domain[indices], attributes)

    evaluated = target & (known | unknown) & parts.target
    problem = Problem(
        known=classes.known,
        sources=tuple(dataset.domains.index(domain) for domain in sources),
        targets=tuple(dataset.domains.index(domain) for domain in targets),
        train=samples(trained & parts.train),
        validation=samples(trained & parts.validation),
        source_unknown=samples(source & unknown),
        target=samples(evaluated),
        held_out=parts.validation[evaluated],
    )
    _check_covered(problem, dataset, classes, on_empty)
    return problem


def _position(name: str, known: Sequence[str]) -> int:
    return known.index(name) if name in known else UNKNOWN


def _allowed(dataset: Dataset, classes: ClassSplit) -> Tensor:
    """Mark (N,) what is left when some source domains have only a part of the known classes."""
    allowed = torch.ones(len(dataset.domains), len(dataset.classes), dtype=torch.bool)
    for domain, has in classes.partial.items():
        allowed[dataset.domains.index(domain)] = torch.tensor([name in has for name in dataset.classes])
    return allowed[dataset.domain, dataset.label]


def _check_covered(problem: Problem, dataset: Dataset, classes: ClassSplit, on_empty: str) -> None:
    """Every known class must have an image to train on, in every source that is not said to lack it."""
    seen = set(zip(problem.train.domain.tolist(), problem.train.label.tolist(), strict=True))
    empty = []
    for position, name in enumerate(problem.known):
        lacking = [source for source in problem.sources if (source, position) not in seen]
        if len(lacking) == len(problem.sources):
            raise MedicError(f"no source domain has an image of the known class {name!r} to train on")
        empty += [(dataset.domains[source], name) for source in lacking]
    empty = [(domain, name) for domain, name in empty if name in classes.partial.get(domain, problem.known)]
    if empty:
        more = f", and {len(empty) - 1} more are missing" if len(empty) > 1 else ""
        message = f"source domain {empty[0][0]!r} has no image of the known class {empty[0][1]!r} to train on{more}"
        if on_empty == "error":
            raise MedicError(f"{message}: --partial auto takes what each domain has")
        warn(message)
    if len(problem.validation) == 0:
        raise MedicError(f"{dataset.name} leaves no validation images: hold out a larger share, as in --holdout 0.5")
    for target in problem.targets:
        here = problem.target.label[problem.target.domain == target]
        if not bool((here >= 0).any()):
            raise MedicError(f"the target {dataset.domains[target]!r} has no image of a known class to be tested on")
        if classes.unknown and bool((here >= 0).all()):
            name = dataset.domains[target]
            warn(f"the target {name!r} has no image of an unknown class: accuracy alone is measured")
