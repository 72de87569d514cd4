"""Settings for the model: backbone, head and layers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from medic.config.fields import PathLike, setting
from medic.errors import MedicError, check_choice
from medic.utils.parts import COUNT, POSITIVE, Limits

if TYPE_CHECKING:
    from medic.data import Benchmark
    from medic.models.heads import Head
    from medic.models.tuning import Tune
    from medic.objectives import ObjectiveKind
    from medic.systems.base import Method

BatchNorm = Literal["local", "sync", "frozen"]
Pool = Literal["own", "token", "avg", "max", "avgmax"]


class ModelSettings(TypedDict, total=False):
    """Settings for the model. All of them are optional."""

    backbone: Annotated[
        str,
        setting(
            "network: convnet, mnist-cnn, gfnet_h_ti, any timm model, or your own function as MODULE:FUNCTION",
            default_rule="the benchmark's",
        ),
    ]
    weights: Annotated[
        PathLike,
        setting(
            "pretrained weights for the backbone: a safetensors or torch file, imagenet-v1, or a timm tag such as "
            "tv_in1k",
            local=True,
            takes="FILE|NAME",
        ),
    ]
    tune: Annotated[
        str,
        setting(
            "what to train: all, last:N (the head and the last N blocks), norm (the head and normalisation layers), "
            "adapters (the head and LoRA adapters), or head (the head alone, on features computed once)",
            "all",
            takes="PART",
        ),
    ]
    lora_rank: Annotated[int, setting("rank of the LoRA adapters", default_rule="8", limits=COUNT, takes="N")]
    lora_alpha: Annotated[
        float, setting("LoRA scale, which is divided by the rank", default_rule="16", limits=POSITIVE, takes="X")
    ]
    lora_dropout: Annotated[
        float,
        setting(
            "dropout on the inputs of the LoRA adapters",
            default_rule="none",
            limits=Limits(0, 1, below=True),
            takes="P",
        ),
    ]
    pool: Annotated[
        Pool,
        setting(
            "how a timm model pools its features: token, avg, max, avgmax, or own (as in pretraining)",
            "own",
        ),
    ]
    head: Annotated[
        str,
        setting(
            "head: close, separate, shared, reciprocal, ring, branches or prompted", default_rule="the objective's"
        ),
    ]
    layer: Annotated[
        str,
        setting(
            "layer to insert into the backbone: mixstyle, aloft-e, aloft-s or none", "none", default_rule="the method's"
        ),
    ]
    batch_norm: Annotated[
        BatchNorm,
        setting(
            "batch-norm statistics: local (per process), sync (across processes) or frozen",
            default_rule="frozen with pretrained weights, unless --tune is head or adapters; otherwise local",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The backbone with its weights, head, inserted layer and batch-norm mode."""

    backbone: str
    weights: str | None
    """None for random initialisation."""
    tune: str
    """The part of the backbone to train, in the notation of `medic.models.tuning.Tune`."""
    lora_rank: int | None
    """None, like the other LoRA settings, if the model has no adapters."""
    lora_alpha: float | None
    lora_dropout: float | None
    pool: Pool
    head: str
    layer: str
    batch_norm: BatchNorm

    @property
    def tuning(self) -> "Tune":
        """The part of the backbone to train, with the LoRA settings."""
        from medic.models.tuning import Tune

        tune = Tune.parse(self.tune)
        if self.lora_rank is None or self.lora_alpha is None or self.lora_dropout is None:
            return tune
        return replace(tune, rank=self.lora_rank, alpha=self.lora_alpha, dropout=self.lora_dropout)

    @property
    def head_alone(self) -> bool:
        """Whether only the head is trained, on the features of a frozen backbone."""
        return self.tune == "head"

    @property
    def head_kind(self) -> "type[Head]":
        """The class of the head."""
        from medic.models import HEADS

        return HEADS[self.head]


def resolve_model(settings: Mapping[str, Any], kind: "ObjectiveKind") -> ModelConfig:
    """Resolve the model settings for an objective."""
    from medic.models import HEADS, LAYERS
    from medic.models.tuning import Tune

    head = check_choice("head", settings["head"] or kind.heads[0], HEADS)
    if head not in kind.heads:
        fitting, objective = " or ".join(kind.heads), settings["objective"]
        raise MedicError(f"head {head!r} does not support objective {objective!r}: use --head {fitting}")
    tune = settings["tune"]
    lora = _resolve_lora(settings, Tune.parse(tune))
    return ModelConfig(
        backbone=settings["backbone"],
        weights=settings["weights"],
        tune=tune,
        lora_rank=lora.get("lora_rank"),
        lora_alpha=lora.get("lora_alpha"),
        lora_dropout=lora.get("lora_dropout"),
        pool=settings["pool"],
        head=head,
        layer=check_choice("layer", settings["layer"], ["none", *LAYERS]),
        batch_norm=settings["batch_norm"],
    )


def _resolve_lora(settings: Mapping[str, Any], tune: "Tune") -> dict[str, Any]:
    """Return the complete LoRA settings. Empty if the model has no adapters."""
    defaults = {"lora_rank": tune.rank, "lora_alpha": tune.alpha, "lora_dropout": tune.dropout}
    set_by_user = {name: settings[name] for name in defaults if settings[name] is not None}
    if tune.kind == "adapters":
        return {**defaults, **set_by_user}
    if set_by_user:
        option = f"--{next(iter(set_by_user)).replace('_', '-')}"
        raise MedicError(f"{option} requires --tune adapters, got --tune {settings['tune']}")
    return {}


def find_backbone(chosen: str | None, method: "Method", bench: "Benchmark") -> str:
    """Return the name of the backbone: the user's choice, the method's, or the benchmark's default."""
    from medic.models import is_custom

    backbone = chosen if chosen is not None else method.backbone or bench.backbone
    if method.backbone not in (None, backbone):
        raise MedicError(f"method {method.name!r} requires backbone {method.backbone}: omit --backbone {backbone}")
    if bench.channels != 3 and backbone != bench.backbone and not is_custom(backbone):
        way = f"use --backbone {bench.backbone}" if method.backbone is None else "choose another method"
        raise MedicError(
            f"backbone {backbone!r} expects images with 3 channels, but {bench.name!r} has {bench.channels}: {way}"
        )
    return backbone
