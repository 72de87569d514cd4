"""The callback of the sampler `informative`, after Luna Gutierrez and Leonetti (2020).

It tries tasks on the model and keeps the informative ones. A candidate is described by the probabilities (N, C) of some
samples after a step on it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medic.strategies.base import Measured, buffers, weights_restored
from medic.strategies.inner import sgd
from medic.tasks import Cells, Step
from medic.training.callbacks.base import Callback, Training
from medic.training.inference import load
from medic.training.precision import arithmetic
from medic.utils.modules import evaluating
from medic.utils.outputs import Output
from medic.utils.parts import hyperparameter

IMAGES_PER_DOMAIN = 64
"""Images per source domain on which candidates are compared."""
RATE = 1e-2
"""The rate of the step on a candidate if the strategy has no inner rate."""


@dataclass
class InformativeTasks(Callback):
    """Chooses the tasks that the grid deals until its next turn: option (iv) of the paper.

    The tasks of two independent splits are candidates. Each is tried by one inner step on a batch, and described by the
    model's outputs afterwards for some training images of every source domain. Batch norm is in evaluation mode, no
    image is augmented, and weights and buffers are restored exactly.
    """

    every: int = hyperparameter(50, least=1)
    delta: float = hyperparameter(0.01)
    single_process = "sampling 'informative' tries whole tasks"

    def on_iteration(self, training: Training) -> None:
        """Try candidates in random order until enough are accepted."""
        grid, samples = training.grid, training.samples
        candidates = grid.candidates(training.cells, splits=2)
        order = torch.randperm(len(candidates), generator=grid.generator).tolist()
        visited = [candidates[position] for position in order]
        domains = Cells([samples.domain], len(samples))
        batches = [domains.draw(key, min(IMAGES_PER_DOMAIN, domains.size(key)), grid.generator) for key in domains.keys]
        modules = Measured(training.model, training.objective)
        with evaluating(training.model), buffers(modules, "restore", 0.0):
            inputs = [_inputs(training, batch) for batch in batches]
            before = _predictions(training, inputs)
            drawn = (grid.sample(training.cells, task, training.batch_size) for task in visited)
            after = (_after_a_step(training, chosen, inputs) for chosen in drawn)
            chosen = choose(before, after, [len(batch) for batch in batches], sum(grid.spec.round), self.delta)
        grid.chosen = [visited[position] for position in chosen]


def _after_a_step(training: Training, chosen: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return the predictions for some inputs after an inner step on the samples of a task, at positions (N,)."""
    samples, device = training.samples, training.device
    labels = {"domain": samples.domain, **samples.attributes}
    step = Step(
        _inputs(training, chosen),
        samples.label[chosen].to(device),
        (len(chosen),),
        {name: values[chosen].to(device) for name, values in labels.items()},
    )
    measured = Measured(training.model, training.objective)
    with weights_restored(measured.adapted):
        with torch.enable_grad(), arithmetic(training.precision, device):
            gradients = torch.autograd.grad(measured(step).total, measured.adapted, allow_unused=True)
        sgd(getattr(training.strategy, "lr", RATE))(measured.adapted, list(gradients))
        return _predictions(training, inputs)


@torch.no_grad()
def _predictions(training: Training, inputs: Sequence[Tensor]) -> Tensor:
    """Return the model's softmax (N, C) for some inputs, on the CPU."""
    with arithmetic(training.precision, training.device):
        logits = torch.cat([Output.of(training.model(x)).logits for x in inputs])
    return logits.double().softmax(1).cpu()


def _inputs(training: Training, chosen: Tensor) -> Tensor:
    """Return the inputs of training samples, at positions (N,), without augmentation."""
    positions = training.samples.indices[chosen]
    inputs = load(training.images, positions, training.preprocessing, training.device)
    return inputs.contiguous(memory_format=torch.channels_last)


def floored(probability: Tensor) -> Tensor:
    """Return probabilities (N, C) without zeros, so that logarithms are finite."""
    raised = probability.clamp(min=1e-4)
    return raised / raised.sum(-1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> float:
    """Return the mean over samples of KL(p ‖ q), from probabilities (N, C)."""
    return float((p * (p / q).log()).sum(1).mean())


def entropies(p: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean entropy of each batch (batches,), from the probabilities p (N, C) of consecutive batches."""
    entropy = -(p * p.log()).sum(1)
    return torch.stack([batch.mean() for batch in entropy.split(list(sizes))])


def is_relevant(before: Tensor, after: Tensor, sizes: Sequence[int]) -> bool:
    """Whether a step leaves the model at least as certain about one of the batches."""
    return bool((entropies(before, sizes) >= entropies(after, sizes)).any())


def choose(before: Tensor, candidates: Iterable[Tensor], sizes: Sequence[int], count: int, delta: float) -> list[int]:
    """Choose `count` candidates, or all if there are fewer; return their positions.

    `before` (N, C) are the model's probabilities for the samples of batches of `sizes`, and each candidate those after
    a step on it. In order, a candidate is accepted if it is relevant and differs from every accepted one by a
    divergence of at least `delta`. If too few are accepted, the first rejected ones fill up.
    """
    before = floored(before)
    accepted: dict[int, Tensor] = {}
    others: list[int] = []
    for position, after in enumerate(map(floored, candidates)):
        differs = all(divergence(kept, after) >= delta for kept in accepted.values())
        if differs and is_relevant(before, after, sizes):
            accepted[position] = after
        else:
            others.append(position)
        if len(accepted) == count:
            break
    return [*accepted, *others[: count - len(accepted)]]
