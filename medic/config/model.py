"""The model of a run: its backbone, head and layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from medic.config.fields import PathLike, setting
from medic.errors import MedicError, check_choice

if TYPE_CHECKING:
    from medic.data import Benchmark
    from medic.models.heads import Head
    from medic.objectives import ObjectiveKind
    from medic.systems.base import Method

BatchNorm = Literal["local", "sync", "frozen"]


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
    freeze: Annotated[
        Literal["backbone"], setting("`backbone` trains the head alone, on features that are computed once")
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
    freeze: Literal["backbone"] | None
    head: str
    layer: str
    batch_norm: BatchNorm

    @property
    def head_kind(self) -> "type[Head]":
        """The class of the head."""
        from medic.models import HEADS

        return HEADS[self.head]


def resolve_model(settings: Mapping[str, Any], kind: "ObjectiveKind") -> ModelConfig:
    """Complete the settings of the model for an objective."""
    from medic.models import HEADS, LAYERS

    head = check_choice("head", settings["head"] or kind.heads[0], HEADS)
    if head not in kind.heads:
        fitting, objective = " or ".join(kind.heads), settings["objective"]
        raise MedicError(f"head {head!r} does not fit objective {objective!r}: use --head {fitting}")
    return ModelConfig(
        backbone=settings["backbone"],
        weights=settings["weights"],
        freeze=settings["freeze"],
        head=head,
        layer=check_choice("layer", settings["layer"], ["none", *LAYERS]),
        batch_norm=settings["batch_norm"],
    )


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
