"""The model of a run: its backbone, head and layers."""

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
            "convnet, mnist-cnn, gfnet_h_ti, a model of timm, or a function of yours, MODULE:FUNCTION",
            default_rule="the benchmark's",
        ),
    ]
    weights: Annotated[
        PathLike,
        setting(
            "weights of the backbone: a safetensors or torch file, or timm's by name, imagenet-v1 or a tag like "
            "tv_in1k",
            local=True,
            takes="FILE|NAME",
        ),
    ]
    tune: Annotated[
        str,
        setting(
            "what is trained beside the head: all, last:N (blocks), norm (layers), adapters (LoRA), or head, which "
            "trains nothing else, on features that are computed once",
            "all",
            takes="PART",
        ),
    ]
    lora_rank: Annotated[int, setting("rank of the adapters", default_rule="8", limits=COUNT, takes="N")]
    lora_alpha: Annotated[
        float, setting("scale of the adapters, divided by their rank", default_rule="16", limits=POSITIVE, takes="X")
    ]
    lora_dropout: Annotated[
        float,
        setting("dropout of the adapters' inputs", default_rule="none", limits=Limits(0, 1, below=True), takes="P"),
    ]
    pool: Annotated[
        Pool,
        setting(
            "how a model of timm pools its last map or tokens: token, avg, max, avgmax, or own, as it was pretrained",
            "own",
        ),
    ]
    head: Annotated[
        str,
        setting("close, separate, shared, reciprocal, ring, branches or prompted", default_rule="the objective's"),
    ]
    layer: Annotated[
        str,
        setting("layer inside the backbone: mixstyle, aloft-e, aloft-s or none", "none", default_rule="the method's"),
    ]
    batch_norm: Annotated[
        BatchNorm,
        setting(
            "batch-norm statistics: local to each process, sync over all, or frozen",
            default_rule="frozen from pretrained weights, otherwise local",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A backbone with its weights, head, inserted layer and batch-norm policy."""

    backbone: str
    weights: str | None
    """None for weights that are drawn at random."""
    tune: str
    """The part of the backbone that is trained, as `medic.models.tuning.Tune` reads it."""
    lora_rank: int | None
    """The settings of the adapters are None without adapters."""
    lora_alpha: float | None
    lora_dropout: float | None
    pool: Pool
    head: str
    layer: str
    batch_norm: BatchNorm

    @property
    def tuning(self) -> "Tune":
        """The part of the backbone that is trained, with the settings of the adapters."""
        from medic.models.tuning import Tune

        tune = Tune.parse(self.tune)
        if self.lora_rank is None or self.lora_alpha is None or self.lora_dropout is None:
            return tune
        return replace(tune, rank=self.lora_rank, alpha=self.lora_alpha, dropout=self.lora_dropout)

    @property
    def head_alone(self) -> bool:
        """Whether the head alone is trained, on features of the backbone."""
        return self.tune == "head"

    @property
    def head_kind(self) -> "type[Head]":
        """The class of the head."""
        from medic.models import HEADS

        return HEADS[self.head]


def resolve_model(settings: Mapping[str, Any], kind: "ObjectiveKind") -> ModelConfig:
    """Complete the settings of the model for an objective."""
    from medic.models import HEADS, LAYERS
    from medic.models.tuning import Tune

    head = check_choice("head", settings["head"] or kind.heads[0], HEADS)
    if head not in kind.heads:
        fitting, objective = " or ".join(kind.heads), settings["objective"]
        raise MedicError(f"head {head!r} does not fit objective {objective!r}: use --head {fitting}")
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
    """Return the complete settings of the adapters, if there are any."""
    defaults = {"lora_rank": tune.rank, "lora_alpha": tune.alpha, "lora_dropout": tune.dropout}
    set_by_user = {name: settings[name] for name in defaults if settings[name] is not None}
    if tune.kind == "adapters":
        return {**defaults, **set_by_user}
    if set_by_user:
        raise MedicError(f"{next(iter(set_by_user))} has no effect on tune {settings['tune']!r}: use --tune adapters")
    return {}


def find_backbone(chosen: str | None, method: "Method", bench: "Benchmark") -> str:
    """Return the backbone of a run: the user's, the method's or the benchmark's."""
    backbone = chosen or method.backbone or bench.backbone
    if method.backbone not in (None, backbone):
        raise MedicError(f"method {method.name!r} works inside {method.backbone}: leave out --backbone {backbone}")
    if bench.channels != 3 and backbone != bench.backbone:
        raise MedicError(
            f"backbone {backbone!r} takes images of 3 channels, but {bench.name!r} has {bench.channels}: "
            f"use --backbone {bench.backbone}"
        )
    return backbone
