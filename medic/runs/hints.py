"""Hints for runs that diverged or learned nothing."""

from medic.config.resolve import Plan


def lower_rates(plan: Plan) -> str:
    """Return the hint for a diverged loss: lower the learning rates that the user set, or all of them."""
    rates = {"lr": plan.config.optim.lr, "inner_lr": plan.config.objective.inner_lr}
    used = {name: rate for name, rate in rates.items() if rate is not None}
    blamed = [name for name in used if plan.user_settings.get(name) is not None] or list(used)
    return "lower " + " or ".join(f"--{name.replace('_', '-')} below {used[name]:g}" for name in blamed)


def learning_hint(plan: Plan) -> str:
    """Return the hint for a run that does not learn."""
    optim = plan.config.optim
    warmup = f"raise --warmup above {optim.warmup}" if optim.warmup else "add --warmup N"
    clip = f"lower --clip-norm below {optim.clip_norm:g}" if optim.clip_norm else "add --clip-norm 1"
    return f"{lower_rates(plan)}, {clip}, {warmup}, or raise --iterations"
