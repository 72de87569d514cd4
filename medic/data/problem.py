"""Open set problems: source images for training and validation, target images for evaluation only."""

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
    """N images of a dataset: `indices` into the dataset, `label` (known class or -1) and `domain`, of shape (N,)."""

    indices: Tensor
    label: Tensor
    domain: Tensor
    attributes: Mapping[str, Tensor] = field(default_factory=dict)
    """Additional integer labels of shape (N,) that a grid can split by."""

    def __len__(self) -> int:
        return len(self.indices)

    def at(self, rows: Tensor) -> "Samples":
        """Select samples by row index."""
        attributes = {name: values[rows] for name, values in self.attributes.items()}
        return Samples(self.indices[rows], self.label[rows], self.domain[rows], attributes)


@dataclass(frozen=True)
class Problem:
    """An open set domain generalization problem.

    - `train` and `validation`: known classes in the source domains.
    - `target`: images of the target domains, where unknown classes have label -1. For evaluation only.
    - `source_unknown`: unknown classes in the source domains. For evaluation only.
    - `held_out`: a mask over `target` of the images that DomainBed would use for validation.

    If `targets` is empty, `target` contains the held-out source images: `validation` and `source_unknown`.
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
    """Return sources and targets in the order of `domains`. If one of them is None, it becomes all other domains."""
    for domain in (*(targets or ()), *(sources or ())):
        check_choice("domain", domain, domains)
    if targets is None and sources is None:
        raise MedicError(f"missing target domain: pass --target with one of {', '.join(domains)}")
    if targets is None:
        targets = [domain for domain in domains if domain not in (sources or ())]
    if sources is None:
        sources = [domain for domain in domains if domain not in targets]
    both = [domain for domain in targets if domain in sources]
    if both:
        raise MedicError(f"target {both[0]!r} is also a source ({', '.join(sources)}): remove it from --sources")
    if not sources:
        raise MedicError("no source domain left for training: pass --sources, or fewer domains with --target")
    if not targets:
        raise MedicError("no target domain left for testing: pass --target, or remove a domain from --sources")
    return tuple(d for d in domains if d in sources), tuple(d for d in domains if d in targets)


def make_problem(
    dataset: Dataset,
    sources: Sequence[str],
    targets: Sequence[str],
    classes: ClassSplit,
    parts: Parts,
    on_empty: Literal["error", "warn"] = "error",
) -> Problem:
    """Divide a dataset into training, validation and evaluation images.

    If `targets` is empty, the held-out source images are evaluated. `on_empty` determines what happens if a source
    domain has no images of a class it should contain according to `classes`.
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
    """Return a mask of shape (N,) that selects the images whose class `classes.partial` allows in their domain."""
    allowed = torch.ones(len(dataset.domains), len(dataset.classes), dtype=torch.bool)
    for domain, has in classes.partial.items():
        allowed[dataset.domains.index(domain)] = torch.tensor([name in has for name in dataset.classes])
    return allowed[dataset.domain, dataset.label]


def _check_covered(problem: Problem, dataset: Dataset, classes: ClassSplit, on_empty: str) -> None:
    """Check that every source contains its known classes, and every target contains images to evaluate."""
    seen = set(zip(problem.train.domain.tolist(), problem.train.label.tolist(), strict=True))
    empty = []
    for position, name in enumerate(problem.known):
        lacking = [dataset.domains[source] for source in problem.sources if (source, position) not in seen]
        if len(lacking) == len(problem.sources):
            raise MedicError(f"known class {name!r} has no images in any source domain: remove it from --known")
        empty += [(domain, name) for domain in lacking if name in classes.of_source(domain)]
    if empty:
        more = f" (and {len(empty) - 1} more such cases)" if len(empty) > 1 else ""
        message = f"source domain {empty[0][0]!r} has no training images of known class {empty[0][1]!r}{more}"
        if on_empty == "error":
            raise MedicError(f"{message}: use --partial auto to train each domain on the classes that it contains")
        warn(message)
    if len(problem.validation) == 0:
        raise MedicError(f"{dataset.name} has no validation images: hold out a larger share, such as --holdout 0.5")
    for target in problem.targets:
        known, name = problem.target.label[problem.target.domain == target] >= 0, dataset.domains[target]
        if not known.any():
            raise MedicError(f"target domain {name!r} has no images of a known class: choose another target")
        if classes.unknown and known.all():
            warn(f"target domain {name!r} has no images of an unknown class: only accuracy will be measured")


def draw_shots(samples: Samples, count: int, generator: torch.Generator) -> Samples:
    """Draw at most `count` random samples per class and domain, in their original order."""
    shuffled = torch.randperm(len(samples), generator=generator)
    cells = torch.stack((samples.domain, samples.label), dim=1)[shuffled]
    kept = [shuffled[(cells == cell).all(1)][:count] for cell in cells.unique(dim=0)]
    return samples.at(torch.cat(kept).sort().values)


def mislabelled(
    samples: Samples, share: float, classes: Mapping[int, Sequence[int]], generator: torch.Generator
) -> Samples:
    """Add label noise to samples.

    Each label is independently replaced, with probability `share`, by another class drawn uniformly from the classes in
    its domain. `classes` maps each domain to its known classes.
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
        ahead = 1 + (draws[rows] * (len(order) - 1)).long()  # at least 1, so that the class changes
        label[rows] = order[(position + ahead) % len(order)]
    return replace(samples, label=label)
