"""The callback for the `informative` sampler, after Luna Gutierrez and Leonetti (2020).

The callback tries out candidate tasks with the model and keeps the informative ones. It describes a candidate by the
probabilities, of shape (N, C), that the model predicts for some samples after a step on the candidate.
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
"""Number of images per source domain for comparing candidates."""
RATE = 1e-2
"""Learning rate for steps on candidates if the strategy has no inner learning rate."""


@dataclass
class InformativeTasks(Callback):
    """Option (iv) of the paper: a callback that chooses the tasks for the grid to use until its next turn.

    The candidates are the tasks of two independent splits. The callback takes one inner step on a batch from each
    candidate, and records the model's outputs for some training images from every source domain. Batch norm is in
    evaluation mode, images are not augmented, and weights and buffers are restored exactly.
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
    """Return predictions for `inputs` after an inner step on the samples at positions `chosen`, of shape (N,)."""
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
    """Return the model's softmax for some inputs, of shape (N, C), on the CPU."""
    with arithmetic(training.precision, training.device):
        logits = torch.cat([Output.of(training.model(x)).logits for x in inputs])
    return logits.double().softmax(1).cpu()


def _inputs(training: Training, chosen: Tensor) -> Tensor:
    """Return training inputs without augmentation, for positions of shape (N,)."""
    positions = training.samples.indices[chosen]
    inputs = load(training.images, positions, training.preprocessing, training.device)
    return inputs.contiguous(memory_format=torch.channels_last)


def floored(probability: Tensor) -> Tensor:
    """Raise small probabilities, of shape (N, C), so that logarithms are finite. Renormalises the rows."""
    raised = probability.clamp(min=1e-4)
    return raised / raised.sum(-1, keepdim=True)


def divergence(p: Tensor, q: Tensor) -> float:
    """Return the mean of KL(p ‖ q) over samples, from probabilities of shape (N, C)."""
    return float((p * (p / q).log()).sum(1).mean())


def entropies(p: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the mean entropy of each batch, from probabilities of shape (N, C) for consecutive batches."""
    entropy = -(p * p.log()).sum(1)
    return torch.stack([batch.mean() for batch in entropy.split(list(sizes))])


def is_relevant(before: Tensor, after: Tensor, sizes: Sequence[int]) -> bool:
    """Return whether the model is at least as certain about some batch after a step as before."""
    return bool((entropies(before, sizes) >= entropies(after, sizes)).any())


def choose(before: Tensor, candidates: Iterable[Tensor], sizes: Sequence[int], count: int, delta: float) -> list[int]:
    """Choose `count` candidates, or all if there are fewer, and return their positions.

    `before` holds the model's probabilities, of shape (N, C), for consecutive batches of the given `sizes`. Each
    candidate holds the probabilities predicted after a step on that candidate. Candidates are visited in order. A
    candidate is accepted if it is relevant and its divergence from every accepted candidate is at least `delta`. If too
    few are accepted, the first rejected candidates fill the remaining places.
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
