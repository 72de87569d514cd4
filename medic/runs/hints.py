"""Hints for runs that diverged or learned nothing."""

from medic.config.plan import Plan
from medic.config.starts import STARTS

SHORT = 0.1
"""A run with a smaller fraction of the default iterations is probably just too short."""


def lower_rates(plan: Plan) -> str:
    """Return the hint for a diverged loss: lower or omit the learning rates that the user set, or lower all of them."""
    rates = {"lr": plan.config.optim.lr, "inner_lr": plan.config.objective.inner_lr}
    used = {name: rate for name, rate in rates.items() if rate is not None}
    chosen = [name for name in used if plan.user_settings.get(name) is not None]
    omit = ("", " or omit it", ", or omit both")[len(chosen)]
    rates_below = (f"--{name.replace('_', '-')} below {used[name]:g}" for name in chosen or used)
    return f"lower {' or '.join(rates_below)}{omit}"


def learning_hint(plan: Plan) -> str:
    """Return the hint for a run that does not learn. For a very short run, iterations come first."""
    optim = plan.config.optim
    warmup = f"raise --warmup above {optim.warmup}" if optim.warmup else "add --warmup N"
    clip = f"lower --clip-norm below {optim.clip_norm:g}" if optim.clip_norm else "add --clip-norm 1"
    default = STARTS[plan.start].iterations
    if optim.iterations < SHORT * default:
        more = f"raise --iterations above {optim.iterations} (default: {default})"
        return f"{more}, {lower_rates(plan)}, {clip}, or {warmup}"
    return f"{lower_rates(plan)}, {clip}, {warmup}, or raise --iterations"
