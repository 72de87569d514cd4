"""Problems: training and validation images of the source domains, and target images for evaluation only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """N images of a dataset: positions `indices` (N,), known class or -1 `label` (N,), and `domain` (N,)."""

    indices: Tensor
    label: Tensor
    domain: Tensor
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Further integer labels (N,), which a grid can split."""

    def __len__(self) -> int:
        return len(self.indices)

    def at(self, rows: Tensor) -> "Samples":
        """Return the samples at `rows` (n,)."""
        attributes = {name: values[rows] for name, values in self.attributes.items()}
        return Samples(self.indices[rows], self.label[rows], self.domain[rows], attributes)


@dataclass(frozen=True)
class Problem:
    """One open set domain generalization problem.

    `train` and `validation` hold the known classes of the source domains. `target` holds the images of the target
    domains, with unknown classes as -1. `source_unknown` holds the unknown classes of the source domains: new classes
    in familiar domains. Only evaluation receives the last two. `held_out` (N_target,) marks the images that DomainBed
    would use as the validation part of the target. Without a target domain, `targets` is empty and `target` holds what
    training holds out: `validation` and `source_unknown`.
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
    """Return sources and targets in the order of `domains`; if one is None, it is all other domains."""
    for domain in (*(targets or ()), *(sources or ())):
        check_choice("domain", domain, domains)
    if targets is None and sources is None:
        raise MedicError(f"no target given: choose a domain with --target, one of {', '.join(domains)}")
    if targets is None:
        targets = [domain for domain in domains if domain not in (sources or ())]
    if sources is None:
        sources = [domain for domain in domains if domain not in targets]
    both = [domain for domain in targets if domain in sources]
    if both:
        raise MedicError(f"the target {both[0]!r} is among the sources {', '.join(sources)}: remove it from --sources")
    if not sources:
        raise MedicError("no source domain to train on: give at least one with --sources, or fewer with --target")
    if not targets:
        raise MedicError("no target domain to test on: choose one with --target, or leave one out of --sources")
    return tuple(d for d in domains if d in sources), tuple(d for d in domains if d in targets)


def make_problem(
    dataset: Dataset,
    sources: Sequence[str],
    targets: Sequence[str],
    classes: ClassSplit,
    parts: Parts,
    on_empty: Literal["error", "warn"] = "error",
) -> Problem:
    """Divide a dataset into training, validation and evaluation images; without targets, held-out images are evaluated.

    `on_empty` decides about a source domain without images of a known class that `classes.partial` expects there.
    """
    position = {name: i for i, name in enumerate(classes.known)}
    label = torch.tensor([position.get(name, UNKNOWN) for name in dataset.classes])[dataset.label]
    unknown = torch.tensor([name in classes.unknown for name in dataset.classes])[dataset.label]
    known = label != UNKNOWN
    source_at, target_at = (tuple(map(dataset.domains.index, names)) for names in (sources, targets))
    source, target = (torch.isin(dataset.domain, torch.tensor(at, dtype=torch.long)) for at in (source_at, target_at))
    trained = source & known & _allowed(dataset, classes)

    def samples(mask: Tensor) -> Samples:
        indices = mask.nonzero().squeeze(1)
        attributes = {name: values[indices] for name, values in dataset.attributes.items()}
        return Samples(indices, label[indices], dataset.domain[indices], attributes)

    evaluated = target & (known | unknown) & parts.target
    if not targets:
        evaluated = (trained & parts.validation) | (source & unknown)
    problem = Problem(
        known=classes.known,
        sources=source_at,
        targets=target_at,
        train=samples(trained & parts.train),
        validation=samples(trained & parts.validation),
        source_unknown=samples(source & unknown),
        target=samples(evaluated),
        held_out=parts.validation[evaluated],
    )
    _check_covered(problem, dataset, classes, on_empty)
    return problem


def _allowed(dataset: Dataset, classes: ClassSplit) -> Tensor:
    """Mark the images (N,) whose class `classes.partial` allows in their domain."""
    allowed = torch.ones(len(dataset.domains), len(dataset.classes), dtype=torch.bool)
    for domain, has in classes.partial.items():
        allowed[dataset.domains.index(domain)] = torch.tensor([name in has for name in dataset.classes])
    return allowed[dataset.domain, dataset.label]


def _check_covered(problem: Problem, dataset: Dataset, classes: ClassSplit, on_empty: str) -> None:
    """Check that every source has images of its known classes, and every target has images to evaluate."""
    seen = set(zip(problem.train.domain.tolist(), problem.train.label.tolist(), strict=True))
    empty = []
    for position, name in enumerate(problem.known):
        lacking = [dataset.domains[source] for source in problem.sources if (source, position) not in seen]
        if len(lacking) == len(problem.sources):
            raise MedicError(f"no source domain has an image of the known class {name!r}: leave it out of --known")
        empty += [(domain, name) for domain in lacking if name in classes.of_source(domain)]
    if empty:
        more = f", and {len(empty) - 1} more are missing" if len(empty) > 1 else ""
        message = f"source domain {empty[0][0]!r} has no image of the known class {empty[0][1]!r} to train on{more}"
        if on_empty == "error":
            raise MedicError(f"{message}: use --partial auto to train on the classes that each domain has")
        warn(message)
    if len(problem.validation) == 0:
        raise MedicError(f"{dataset.name} leaves no validation images: hold out a larger share, as in --holdout 0.5")
    for target in problem.targets:
        known, name = problem.target.label[problem.target.domain == target] >= 0, dataset.domains[target]
        if not known.any():
            raise MedicError(f"the target {name!r} has no image of a known class: choose another")
        if classes.unknown and known.all():
            warn(f"the target {name!r} has no image of an unknown class: only accuracy is measured")


def draw_shots(samples: Samples, count: int, generator: torch.Generator) -> Samples:
    """Return at most `count` random samples of each class and domain, in their order."""
    shuffled = torch.randperm(len(samples), generator=generator)
    cells = torch.stack((samples.domain, samples.label), dim=1)[shuffled]
    kept = [shuffled[(cells == cell).all(1)][:count] for cell in cells.unique(dim=0)]
    return samples.at(torch.cat(kept).sort().values)


def mislabelled(
    samples: Samples, share: float, classes: Mapping[int, Sequence[int]], generator: torch.Generator
) -> Samples:
    """Return samples with label noise: an expected `share` has another class, uniformly from the classes of its domain.

    `classes` are the known classes by domain. Each sample is drawn independently.
    """
    chosen = torch.rand(len(samples), generator=generator) < share
    draws = torch.rand(len(samples), generator=generator)
    label = samples.label.clone()
    for domain, own in classes.items():
        rows = (chosen & (samples.domain == domain)).nonzero().squeeze(1)
        if len(own) < 2 or not len(rows):
            continue
        order = torch.tensor(sorted(own))
        position = torch.searchsorted(order, label[rows])
        ahead = 1 + (draws[rows] * (len(order) - 1)).long()  # starts at 1, so that no drawn sample keeps its class
        label[rows] = order[(position + ahead) % len(order)]
    return replace(samples, label=label)
