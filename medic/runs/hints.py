"""Advice after a run diverged or learned nothing."""

from medic.config.resolve import Plan


def lower_rates(plan: Plan) -> str:
    """Return the hint after a loss diverged: the rates that the user gave, or all of them if the user gave none."""
    rates = {"lr": plan.config.optim.lr, "inner_lr": plan.config.objective.inner_lr}
    used = {name: rate for name, rate in rates.items() if rate is not None}
    blamed = [name for name in used if plan.user_settings.get(name) is not None] or list(used)
    return "try a lower " + " or ".join(f"--{name.replace('_', '-')} than {used[name]:g}" for name in blamed)


def learning_hint(plan: Plan) -> str:
    """Return what to change if a run does not learn."""
    optim = plan.config.optim
    warmup = f"raise --warmup above {optim.warmup}" if optim.warmup else "add --warmup N"
    clip = f"lower --clip-norm below {optim.clip_norm:g}" if optim.clip_norm else "add --clip-norm 1"
    return f"{lower_rates(plan)}, {clip}, {warmup}, or raise --iterations"
