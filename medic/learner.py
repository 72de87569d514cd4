"""Train with any method in your own training loop."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from medic import openset
from medic.config.objective import OVA_SCALE, parse_hparams
from medic.config.parts import Parts, assign_hparams, find_parts, fit_strategy
from medic.config.tasks import resolve_grid
from medic.data import Images, Samples
from medic.data.images import Items, Resident
from medic.errors import MedicError, check_choice
from medic.methods import Method, find_method, find_needs
from medic.models import Preprocessing
from medic.objectives import OBJECTIVES, PENALTIES, Setup
from medic.objectives.needs import MODEL, NEEDS, OUTPUTS, lacks, missing
from medic.strategies import Update
from medic.strategies.optimizers import reset_optimizer
from medic.systems.base import Rate
from medic.tasks import Grid, Step
from medic.training import Inference, Precision, WeightAverage
from medic.training.precision import arithmetic
from medic.training.trainer import find_trained
from medic.training.updater import Updater
from medic.utils.modules import evaluating, freeze_norms, is_tracking, modes_kept, statistics_estimated
from medic.utils.outputs import Output
from medic.utils.parts import POSITIVE, check_range

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Function that creates an optimizer: `lambda parameters: torch.optim.SGD(parameters, lr=0.01)`."""
TrainSet = tuple[Tensor | Sequence[Any], Tensor, Tensor]
"""N inputs, as a tensor or a sequence of tensors, with classes of shape (N,) and domains of shape (N,)."""

REFRESHED = 30
"""Number of batches used to estimate batch-norm statistics for averaged weights."""
LARGE = 224
"""Image side length in pixels, assumed for a size-dependent learning rate if no `setup` is passed."""


class Learner:
    """A training method for your own loop, which updates a model one batch at a time.

        learner = medic.Learner("medic++", model, optimizer, classes=6, domains=3)
        for x, y, domain in loader:
            learner.step(x, y, domain)

    `step` replaces `zero_grad`, `backward` and `optimizer.step`. You remain in control of batches, device, schedule and
    train/eval mode. Some methods need more than logits: `medic.list_methods()` shows what each method needs, and the
    learner raises an error that names anything missing.

    Args:
        method: Name of a method, or a `Method`.
        model: Network that maps inputs of shape (N, …) to logits of shape (N, C) or to an `Output`.
        optimizer: Optimizer for the model's parameters, or a function that takes a list of parameters and returns an
            optimizer. The learner adds the method's own parameters as extra groups, so create schedulers afterwards,
            from `learner.optimizer`.
        classes: Number of known classes, C.
        domains: Number of source domains.
        setup: Shape and scale of the inputs, if the method needs them.
        train_set: Inputs, classes and domains of all training samples, if the method needs them.
        validate: Function that returns the mean validation loss over the source domains, for weight averages that need
            it.
        iterations: Total number of updates, for weight averages and for penalties that start later: by default,
            `vrex` after 500 updates and `fishr` after 1,500, and earlier if there are fewer than 5,000 updates.
        inner_lr: Learning rate of the inner steps (default: the method's).
        hparams: Hyperparameters of the method, by name.
        clip_norm: Maximum gradient norm (default: no clipping).
        precision: Network precision: `fp32`, `tf32` or `bf16`. Use it instead of `torch.autocast`.
        seed: Seed for splitting batches into tasks.
    """

    def __init__(
        self,
        method: str | Method,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | MakeOptimizer,
        *,
        classes: int,
        domains: int,
        setup: Setup | None = None,
        train_set: TrainSet | None = None,
        validate: Callable[[], float] | None = None,
        iterations: int | None = None,
        inner_lr: float | None = None,
        hparams: Mapping[str, Any] | None = None,
        clip_norm: float | None = None,
        precision: Precision = "fp32",
        seed: int = 0,
    ) -> None:
        self.method = find_method(method) if isinstance(method, str) else method
        if not isinstance(self.method, Method):
            raise MedicError(f"method must be a name in medic.METHODS or a Method, got {type(method).__name__}")
        if not isinstance(model, nn.Module):
            raise MedicError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        check_choice("precision", precision, get_args(Precision))
        if clip_norm is not None:
            check_range("the learner", POSITIVE, clip_norm=clip_norm)
        self.model, self.precision, self.domains = model, precision, domains
        self.needs, self._preset = find_needs(self.method), self._find_preset()
        if domains < self.method.min_domains:
            raise MedicError(
                f"method {self.method.name!r} requires at least {self.method.min_domains} domains, got {domains}"
            )
        self._check_parts(setup=setup, train_set=train_set, validate=validate)
        if validate is not None and iterations is None:
            raise MedicError("validate requires the number of updates: pass iterations=")
        spec = resolve_grid({}, self.method, domains, classes, ())
        parts = find_parts(
            self.method,
            self._preset.get("objective", "ce"),
            self._preset.get("penalty"),
            self._preset.get("layer", "none"),
            self._preset.get("averaging", "none"),
            spec,
        )
        parts, _ = assign_hparams(parts, parse_hparams(hparams), "", iterations, self.method.name)
        # The parts created below go to the same device as the model.
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.setup = replace(setup or Setup(), tasks=max(spec.sizes), domains=domains)
        if parts.layer is not None:
            if hasattr(model, "_medic_layer"):
                raise MedicError("model already contains the layer of another learner: create a new model")
            parts.layer.build().insert(getattr(model, "backbone", model), self._zeros())
            model._medic_layer = parts.layer.name  # type: ignore[assignment]
        self.objective = parts.build_objective(scale=OVA_SCALE)
        self.objective.prepare(model, self.setup)
        self.objective.to(self.device)
        self.optimizer = self._complete_optimizer(optimizer)
        lr = float(self.optimizer.param_groups[0]["lr"])
        parts = fit_strategy(parts, {}, self._inner_lr(inner_lr, lr), self._preset.get("bn_buffers"), lr, spec)
        self.strategy = parts.strategy.build()
        self.grid = Grid(spec, seed=seed, sampler=None if parts.sampler is None else parts.sampler.build())
        self.score: openset.Score = openset.get_score(self._score_name())
        """The confidence score for the method's outputs, to pass to `medic.evaluate`. `finish` fits it if necessary."""
        self.iteration = 0
        self.averaging: WeightAverage | None = None if parts.averaging is None else parts.averaging.build()
        self._validate, self._iterations = validate, iterations
        self._set_data(train_set)
        self._prepare_callbacks(parts)
        self._restarts = self.objective.restart_iterations(len(spec.sizes))
        self._update = Updater(
            model=model,
            network=model,
            strategy=self.strategy,
            objective=self.objective,
            optimizer=self.optimizer,
            grid=self.grid,
            domains=domains,
            device=self.device,
            precision=precision,
            clip_norm=clip_norm,
        )
        self._classes = classes
        self._checked = False

    def step(self, x: Tensor, y: Tensor, domain: Tensor, index: Tensor | None = None, **attributes: Tensor) -> Update:
        """Split a batch into tasks, and update the model once.

        Args:
            x: Inputs of shape (N, …).
            y: Classes of shape (N,).
            domain: Domains of shape (N,).
            index: Rows of the samples in the training set, of shape (N,). Only for methods that correct labels.
            **attributes: Additional attributes of the samples, each of shape (N,), for grids that split by them.
        """
        x, y, domain = (self._placed(part) for part in (x, y, domain))
        self._check_domains(domain)
        if not self._checked:
            self._check_outputs(x)
        self._start(len(y))
        self._run_callbacks()
        labels = self._corrected(index)
        steps = self.grid(x, labels.pop("y", y), domain, **labels, **attributes)
        self._check_tasks(steps)
        return self.update(steps)

    def update(self, steps: Sequence[Step]) -> Update:
        """Update the model once, with tasks that are already assigned to steps."""
        if not self._checked and steps:
            self._check_outputs(steps[0].x)
        self._start(sum(len(step.y) for step in steps))
        self._run_callbacks()
        if self._preset.get("batch_norm") == "frozen":
            freeze_norms(self.model)
        if self.iteration in self._restarts:
            reset_optimizer(self.optimizer)
        update = self._update(steps)
        self.iteration += 1
        if update.summary is not None:
            self.grid.sampler.observe(update.summary.cpu())
        if self.averaging is not None:
            self._average(self.averaging)
        return update

    def finish(self, inputs: Iterable[Any] | None = None) -> openset.Score:
        """Finish training: load averaged weights if the method averages them, and return the fitted score.

        Averaged weights need new batch-norm statistics, which are estimated from `inputs` (default: the training set).
        Pass a data loader, or any iterable of training batches of shape (N, …) or of tuples that start with one.
        """
        if self.averaging is not None:
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](self._weights()), self.averaging.result())
            self._estimate_statistics(inputs)
        if self.score.fitter is not None:
            self.score = self.score.fit(self.inference()(self.samples.indices), self.samples.label)
        return self.score

    def state_dict(self) -> dict[str, Any]:
        """Return the state of everything that an update changes, including the model and the optimizer.

        Learning rates and torch's global random generators, which dropout uses, are not included.
        """
        return {
            "method": self.method.name,
            "iteration": self.iteration,
            **self._update.state_dict(),
            "grid": self.grid.state_dict(),
            "averaging": None if self.averaging is None else self.averaging.state_dict(),
            "batch_size": self.batch_size,
            "cells": self.cells.state_dict() if self.callbacks and self.batch_size else None,
            "callbacks": [callback.state_dict() for callback in self.callbacks] if self.batch_size else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a learner that was created with the same arguments."""
        if state.get("method") != self.method.name:
            raise MedicError(f"expected a state of method {self.method.name!r}, got one of {state.get('method')!r}")
        self.iteration = state["iteration"]
        self._update.load_state_dict(dict(state))
        if self.averaging is not None:
            self.averaging.load_state_dict(state["averaging"], self.device)
        if state["batch_size"]:
            self._start(state["batch_size"] * self.grid.tasks)
            for callback, own in zip(self.callbacks, state["callbacks"], strict=True):
                callback.load_state_dict(self, own)
        self.grid.load_state_dict(state["grid"])
        if state["cells"] is not None:
            self.cells.load_state_dict(state["cells"])

    def inference(self) -> Inference:
        """Return an `Inference` that applies the model to the training set."""
        return Inference(self.model, self.images, self.preprocessing, self.device, self.precision)

    def relabel(self, samples: Samples) -> None:
        """Use these samples from the next step on. Called when labels change."""
        self.samples = samples
        self.cells = self.grid.index(samples.label, samples.domain, **samples.attributes)

    def __repr__(self) -> str:
        return f"Learner({self.method.name!r}, {type(self.model).__name__}, iteration {self.iteration})"

    def _find_preset(self) -> dict[str, Any]:
        """Return the method's preset, combined with that of its penalty."""
        penalty = self.method.preset.get("penalty")
        return {**(PENALTIES[penalty].preset if penalty else {}), **self.method.preset}

    def _score_name(self) -> str:
        own: str | None = self._preset.get("score")
        return own or OBJECTIVES[self._preset.get("objective", "ce")].score

    def _inner_lr(self, inner_lr: float | None, lr: float) -> float | None:
        """Return the inner learning rate: the user's, the method's, or None for the strategy's own."""
        own = self._preset.get("inner_lr") if inner_lr is None else inner_lr
        if isinstance(own, Rate):
            own = own.at(self.setup.shape[-1] if "setup" in self.needs else LARGE)
        return lr if own == "lr" else own

    def _zeros(self) -> Tensor:
        return torch.zeros(1, *self.setup.shape, device=self.device)

    def _complete_optimizer(self, optimizer: torch.optim.Optimizer | MakeOptimizer) -> torch.optim.Optimizer:
        """Return the optimizer with the method's own parameters added, at learning rates relative to the model's."""
        made: Any = optimizer
        if not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
            made = optimizer(self._weights())
        if not isinstance(made, torch.optim.Optimizer):
            kind = type(made).__name__
            raise MedicError(f"optimizer must be a torch optimizer or a function that returns one, got {kind}")
        own = {parameter for group in made.param_groups for parameter in group["params"]}
        if not any(parameter in own for parameter in self.model.parameters()):
            raise MedicError("optimizer must contain the model's parameters: create it from model.parameters()")
        lr = made.param_groups[0]["lr"]
        for parameters, scale in self.objective.parameter_groups():
            made.add_param_group({"params": parameters, "lr": scale * lr})
        return made

    def _check_parts(self, **arguments: Any) -> None:
        """Raise an error if the model or an argument lacks something that the method needs."""
        for need in self.needs:
            if (need in MODEL and lacks(self.model, need)) or (need in arguments and arguments[need] is None):
                raise self._lacking(need)

    @torch.no_grad()
    def _check_outputs(self, x: Tensor) -> None:
        """Raise an error if the model's outputs lack something that the method needs."""
        self._checked = True
        with evaluating(self.model):
            output = Output.of(self.model(x[:2]))
        if (logits := output.logits.shape[-1]) != self._classes:
            raise MedicError(f"model must return one logit per class ({self._classes}), got {logits}")
        for need in self.needs:
            if need in OUTPUTS and missing(output, need):
                raise self._lacking(need)

    def _placed(self, part: Any) -> Any:
        """Move a tensor to the model's device. The grid raises an error for anything else."""
        return part.to(self.device) if isinstance(part, Tensor) else part

    def _check_domains(self, domain: Any) -> None:
        """Raise an error for domains outside 0 to S - 1. On a GPU, check only the first batch, to avoid a sync."""
        if not isinstance(domain, Tensor) or not len(domain) or (self._checked and domain.is_cuda):
            return
        for label in (int(domain.min()), int(domain.max())):
            if not 0 <= label < self.domains:
                last = self.domains - 1
                raise MedicError(
                    f"domain {label} is out of range for {self.domains} domains: number them from 0 to {last}"
                )

    def _lacking(self, need: str) -> MedicError:
        text, way = NEEDS[need]
        head = OBJECTIVES[self._preset.get("objective", "ce")].heads[0]
        ours = f", or use medic.Classifier(backbone, classes, head={head!r})" if need in OUTPUTS else ""
        return MedicError(f"method {self.method.name!r} requires {text}: {way}{ours}")

    def _check_tasks(self, steps: Sequence[Step]) -> None:
        """Raise an error if a domain is missing from the batch and the method tracks domains by position."""
        penalty = self._preset.get("penalty")
        sizes = tuple(len(step.sizes) for step in steps)
        if penalty and PENALTIES[penalty].fixed_order and sizes != self.grid.sizes:
            raise MedicError(
                f"method {self.method.name!r} requires every domain in every batch, got {sum(sizes)} of "
                f"{self.domains}: draw batches by domain"
            )

    def _set_data(self, train_set: TrainSet | None) -> None:
        """Store the training set, if there is one."""
        self.batch_size = 0  # samples per task, set by the first batch
        self.preprocessing = Preprocessing((), (), 0)  # unused: inputs are already preprocessed
        if train_set is None:
            return
        if not isinstance(train_set, tuple | list) or len(train_set) != 3:
            raise MedicError("train_set must be a tuple of three: (inputs, classes, domains)")
        inputs, label, domain = train_set[0], torch.as_tensor(train_set[1]), torch.as_tensor(train_set[2])
        if not len(inputs) == len(label) == len(domain):
            raise MedicError(
                f"train_set must have one class and one domain per input, got {len(inputs)} inputs, {len(label)} "
                f"classes and {len(domain)} domains"
            )
        self.images: Images = Resident(inputs) if isinstance(inputs, Tensor) else Items(inputs)
        self.samples = Samples(torch.arange(len(label)), label.cpu().long(), domain.cpu().long())

    def _prepare_callbacks(self, parts: Parts) -> None:
        self.callbacks = [callback.build() for callback in parts.callbacks]
        for callback in self.callbacks:
            callback.check(type(self.objective), self.grid.spec)
        self._turned_at = -1

    def _start(self, samples: int) -> None:
        """Start the callbacks at the first batch, which determines the number of samples per task."""
        if self.batch_size:
            return
        self.batch_size = max(1, samples // self.grid.tasks)
        if self.callbacks:
            for callback in self.callbacks:
                callback.start(self)
            self.relabel(self.samples)

    def _run_callbacks(self) -> None:
        """Run the callbacks that are due, once per iteration, before its tasks are drawn."""
        if self._turned_at == self.iteration:
            return
        self._turned_at = self.iteration
        for callback in self.callbacks:
            if self.iteration % callback.every == 0:
                callback.on_iteration(self)

    def _corrected(self, index: Tensor | None) -> dict[str, Tensor]:
        """Return the labels and attributes that callbacks have set for a batch, if any."""
        if not self.callbacks or not self.samples.attributes:
            return {}
        if index is None:
            raise MedicError(
                f"method {self.method.name!r} corrects labels and requires the rows of the batch in the training set: "
                "call step(x, y, domain, index)"
            )
        rows = index.cpu()
        labels = {"y": self.samples.label, **self.samples.attributes}
        return {name: values[rows].to(self.device) for name, values in labels.items()}

    def _average(self, averaging: WeightAverage) -> None:
        """Update the weight average, and pass it the validation loss if required."""
        iterations = self._iterations or self.iteration
        averaging.update(self._weights(), self.iteration / iterations)
        if self._validate is not None and averaging.close_due(self.iteration, iterations):
            with evaluating(self.model), torch.no_grad():
                averaging.close(float(self._validate()), self.iteration)

    def _weights(self) -> list[nn.Parameter]:
        return find_trained(self.model)

    @torch.no_grad()
    def _estimate_statistics(self, inputs: Iterable[Any] | None) -> None:
        """Estimate batch-norm statistics for new weights, and keep the model's train/eval mode."""
        if inputs is None:
            inputs = self._batches() if hasattr(self, "images") else ()
        batches = iter(inputs)
        first = next(batches, None)
        with modes_kept(self.model):
            self.model.train()
            if self._preset.get("batch_norm") == "frozen":
                freeze_norms(self.model)
            if first is None and any(map(is_tracking, self.model.modules())):
                raise MedicError(
                    "averaged weights require new batch-norm statistics: pass training batches to finish(inputs)"
                )
            with statistics_estimated(self.model) as tracked, arithmetic(self.precision, self.device):
                for batch in itertools.chain([first], batches) if tracked else ():
                    self.model(self._placed(batch[0] if isinstance(batch, tuple | list) else batch))

    def _batches(self) -> Iterable[Tensor]:
        """Yield batches from the training set, in random order."""
        size = min(len(self.samples), max(2, self.batch_size * max(self.grid.sizes)))
        rows = torch.randperm(len(self.samples), generator=self.grid.generator)
        return (self.images.gather(part, self.device) for part in rows.split(size)[:REFRESHED] if len(part) == size)
