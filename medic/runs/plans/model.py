"""From what was asked of the model to what is learnt, by which objective, and how it is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch

from medic.errors import MedicError, check_choice
from medic.runs.config import RunConfig
from medic.methods import LAYERS, OBJECTIVES, PENALTIES, Method, Numbers, make_objective
from medic.models import HEADS
from medic.models.aloft import Aloft
from medic.models.mixstyle import MixStyle
from medic.objectives import Objective
from medic.openset import RULES, SCORES
from medic.training import Capture, Precision, pick_precision

COMPILED = 250_000
"""Images from which on a compiled network pays, where one like it was compiled before; the first run takes longer."""


@dataclass(frozen=True)
class ModelPlan:
    """What is learnt, by which objective, and how it is read."""

    backbone: str
    weights: Path | None
    head: str
    networks: int
    objective: Objective
    score: str
    threshold: str
    layer: MixStyle | Aloft | None
    batch_norm: str
    frozen: bool
    device: torch.device
    precision: Precision
    capture: Capture
    compiled: bool


def plan_model(config: RunConfig, backbone: str, method: Method, numbers: Numbers, sources: int) -> ModelPlan:
    """What a configuration says of the model, for so many source domains; its weights are looked for last of all."""
    device = pick_device(config.device)
    _check_speed_options(config, device)
    objective = OBJECTIVES[method.objective]
    head = check_choice("head", config.head or objective.heads[0], HEADS)
    if head not in objective.heads:
        trained = " or ".join(objective.heads)
        raise MedicError(f"head {head!r} does not go with objective {method.objective!r}, which trains {trained}")
    score = _pick_score(method)
    threshold = _pick_threshold(config, score)
    scale = ova_scale(config, method) or 1.0
    return ModelPlan(
        backbone,
        None,
        head,
        sources if objective.networks == "domain" else 1,
        make_objective(method.objective, scale, method.forward, numbers, method.penalty, method.change),
        score,
        threshold,
        None if method.layer is None else numbers.make(method.layer, LAYERS[method.layer]),
        method.batch_norm,
        _freezes(config, method),
        device,
        pick_precision(check_choice("precision", config.precision, ["auto", *get_args(Precision)]), device),
        cast(Capture, check_choice("capture", config.capture, get_args(Capture))),
        _compiles(config, method, device),
    )


def pick_device(name: str) -> torch.device:
    """A device by name: `auto` is a GPU where there is one."""
    check_choice("device", name, ["auto", "cpu", "cuda"])
    if name == "cuda" and not torch.cuda.is_available():
        raise MedicError("device 'cuda': this torch finds no GPU; use --device cpu")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _pick_score(method: Method) -> str:
    """The method's score, or what goes with its objective; it must find what it reads."""
    score = method.score or OBJECTIVES[method.objective].score
    if "ova" in SCORES[score].needs and "ova" not in OBJECTIVES[method.objective].losses:
        raise MedicError(f"score {score!r} needs a one-vs-all head: train with --objective ce+ova")
    if "unknown" in SCORES[score].needs and method.objective != "onering":
        raise MedicError(f"score {score!r} needs an output for unknown: train with --objective onering")
    return score


def _pick_threshold(config: RunConfig, name: str) -> str:
    """The rule that was asked for, or the system's own decision where it has one, or else `source`."""
    score = SCORES[name]
    rule = check_choice("threshold rule", config.threshold or ("hard" if score.rejects else "source"), RULES)
    RULES[rule].check(score)
    return rule


def ova_scale(config: RunConfig, method: Method) -> float | None:
    """The factor of the one-vs-all loss, where it is trained: the authors' 0.5 unless another is asked for."""
    if "ova" in OBJECTIVES[method.objective].losses:
        return float(config.ova_scale or 0.5)
    if config.ova_scale is not None:
        raise MedicError(f"ova_scale has no effect on objective {method.objective!r}: use ce+ova or ova")
    return None


def _check_speed_options(config: RunConfig, device: torch.device) -> None:
    """Refuse options that would do nothing where there is no GPU."""
    if device.type != "cuda" and config.capture == "on":
        raise MedicError("capture 'on' makes CUDA graphs, and this run is not on a GPU; use --capture auto")
    if device.type != "cuda" and config.precision == "tf32":
        raise MedicError("precision 'tf32' is of GPUs, and this run is not on one; use fp32 or bf16")


def _compiles(config: RunConfig, method: Method, device: torch.device) -> bool:
    """Whether the network is compiled: not through second derivatives, which torch.compile does not take."""
    check_choice("compile", config.compile, ["auto", "on", "off"])
    twice = getattr(method.strategy, "second_order", False)
    if config.compile == "on" and twice:
        raise MedicError(f"compile 'on': method {method.name!r} differentiates twice, which torch.compile cannot do")
    if (part := _inside(method)) is not None:
        if config.compile == "on":
            raise MedicError(f"compile 'on': {part} looks inside the network, which then is not compiled")
        return False
    if config.freeze is not None:
        return False
    own = config.images or method.training.images
    images = own if config.batch_size is None else config.batch_size * method.grid.tasks
    long = config.iterations * images >= COMPILED
    return config.compile == "on" or (config.compile == "auto" and device.type == "cuda" and long and not twice)


def _inside(method: Method) -> str | None:
    """The part that looks at images or inside the backbone, if there is one."""
    if getattr(PENALTIES.get(method.penalty or ""), "inside", False):
        return f"the penalty {method.penalty!r}"
    inside = getattr(OBJECTIVES[method.objective].kind, "inside", False)
    return f"the objective {method.objective!r}" if inside else None


def _freezes(config: RunConfig, method: Method) -> bool:
    """Whether the head alone is trained; refuse what works inside the backbone."""
    if config.freeze is None:
        return False
    check_choice("part to freeze", config.freeze, ["backbone"])
    if config.views > 1:
        raise MedicError(f"{config.views} views have no effect on the features of a frozen backbone")
    if method.layer is not None:
        raise MedicError(f"layer {method.layer!r} works inside the backbone, which is frozen: leave out --freeze")
    if (part := _inside(method)) is not None:
        raise MedicError(f"{part} works inside the backbone, which is frozen: leave out --freeze")
    if OBJECTIVES[method.objective].networks == "domain":
        raise MedicError(
            f"objective {method.objective!r} has a backbone for every domain: leave out --freeze, which has one"
        )
    return True
