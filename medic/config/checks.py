"""Checks of a plan for settings that do not work together or have no effect."""

from medic.config.objective import check_networks, check_penalty
from medic.config.plan import Plan
from medic.errors import MedicError
from medic.models import has_batch_norm
from medic.objectives import OBJECTIVES
from medic.openset.registry import get_score


def check_plan(plan: Plan) -> None:
    """Raise an error for settings that do not work together or have no effect."""
    config, parts = plan.config, plan.parts
    if "momentum" in plan.user_settings and config.optim.optimizer != "sgd":
        raise MedicError(f"--momentum requires --optimizer sgd, got {config.optim.optimizer!r}")
    if parts.penalty is not None:
        check_penalty(parts.penalty.name, plan.grid, plan.batch_size, config.model.head_kind, plan.networks)
    if OBJECTIVES[parts.objective.name].networks == "domain":
        check_networks(parts.objective.name, plan.grid, config.data.sources)
    for part in parts:
        if part.name not in ("ce", "ova") and part is not parts.objective:
            part.build()  # checks the hyperparameters
    losses = [loss.build() for loss in parts.losses]
    parts.objective.build(losses=losses, change=None if parts.change is None else parts.change.build())
    for callback in parts.callbacks:
        callback.build().check(parts.objective.kind, plan.grid)  # type: ignore[arg-type]
    _check_score(plan)
    if config.execution.compile == "on":
        _check_compile(plan)
    if config.execution.recompute:
        _check_recompute(plan)
    if config.model.head_alone:
        _check_head_alone(plan)


def _check_score(plan: Plan) -> None:
    """Raise an error if a score reads the weights of a single head but the model has several networks."""
    score = plan.config.evaluation.score
    if "head" in get_score(score).needs and plan.networks > 1:
        several = f"method {plan.method.name!r} trains several"
        raise MedicError(f"score {score!r} requires a single head, but {several}: use --score energy")


def _check_compile(plan: Plan) -> None:
    """Raise an error if a compiled network does not support the method, or if there is nothing to compile."""
    if plan.config.model.head_alone:
        raise MedicError("--compile on has no effect with --tune head, whose network is a single layer: omit --compile")
    if plan.parts.second_order:
        name = plan.method.name
        raise MedicError(f"--compile on: torch.compile does not support second derivatives, which method {name!r} uses")
    if plan.parts.inspecting:
        raise MedicError(
            f"--compile on does not support {plan.parts.inspecting}, which accesses the inside of the network"
        )


def _check_recompute(plan: Plan) -> None:
    """Raise an error if the network does not support recomputation in the backward pass."""
    config, parts = plan.config, plan.parts
    layer = f"layer {parts.layer.name!r}" if parts.layer is not None else None
    if config.model.head_alone:
        raise MedicError("--recompute has no effect with --tune head: omit --recompute")
    if config.execution.compile == "on":
        raise MedicError("--compile on and --recompute cannot be combined: omit one of them")
    if parts.second_order:
        raise MedicError(
            f"--recompute does not support the second derivatives of method {plan.method.name!r}: add --order first"
        )
    if part := layer or parts.inspecting:
        raise MedicError(
            f"--recompute does not support {part}, which accesses the inside of the backbone: omit --recompute"
        )
    if config.model.batch_norm != "frozen" and has_batch_norm(config.model.backbone, config.data.image_size):
        raise MedicError("--recompute would update batch-norm statistics twice: add --batch-norm frozen")


def _check_head_alone(plan: Plan) -> None:
    """Raise an error for settings that have no effect on a frozen backbone, or methods that need to train it."""
    config, parts = plan.config, plan.parts
    if config.optim.layer_decay < 1:
        raise MedicError("--layer-decay has no effect with --tune head, which trains no blocks: omit --layer-decay")
    if config.optim.head_first:
        raise MedicError("--head-first has no effect with --tune head, which trains only the head: omit --head-first")
    if config.evaluation.views > 1:
        raise MedicError(f"--views {config.evaluation.views} has no effect on a frozen backbone: omit --views")
    layer = f"layer {parts.layer.name!r}" if parts.layer is not None else None
    if part := layer or parts.inspecting:
        raise MedicError(f"{part} works inside the backbone, which --tune head freezes: use `medic train --tune all`")
    if plan.networks > 1:
        several = f"objective {parts.objective.name!r} uses several backbones"
        raise MedicError(f"{several}, which --tune head freezes: use `medic train --tune all`")
