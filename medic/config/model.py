"""The model of a run: its backbone, head and layers."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from medic.config.fields import Spec, setting
from medic.errors import MedicError, check_choice

if TYPE_CHECKING:
    from medic.data import Benchmark
    from medic.models.heads import Head
    from medic.objectives import ObjectiveKind
    from medic.systems.base import Method


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec):
    """A backbone with its weights, head, inserted layer and batch-norm policy."""

    backbone: str | None = setting(None, "convnet, mnist-cnn, gfnet_h_ti or a model of timm (default: the benchmark's)")
    weights: str | None = setting(
        None,
        "weights of the backbone: a safetensors or torch file, or timm's by name, imagenet-v1 or a tag like tv_in1k",
        local=True,
        takes="FILE|NAME",
    )
    freeze: str | None = setting(
        None, "`backbone` trains the head alone, on features that are computed once", choices=("backbone",)
    )
    head: str | None = setting(
        None, "close, separate, shared, reciprocal, ring, branches or prompted (default: the objective's)"
    )
    layer: str | None = setting(
        None, "layer inside the backbone: mixstyle, aloft-e, aloft-s or none (default: the method's)"
    )
    batch_norm: str | None = setting(
        None,
        "batch-norm statistics: local to each process, sync over all, or frozen (default: frozen from pretrained "
        "weights, otherwise local)",
        choices=("local", "sync", "frozen"),
    )

    def completed(self, kind: "ObjectiveKind", objective: str) -> "ModelSpec":
        """Return the complete spec for an objective."""
        from medic.models import HEADS, LAYERS

        head = check_choice("head", self.head or kind.heads[0], HEADS)
        if head not in kind.heads:
            trained = " or ".join(kind.heads)
            raise MedicError(f"head {head!r} does not fit objective {objective!r}: use --head {trained}")
        layer = check_choice("layer", self.layer or "none", ["none", *LAYERS])
        return replace(self, head=head, layer=layer, batch_norm=self.batch_norm or "local")

    @property
    def head_kind(self) -> "type[Head]":
        """The class of the head of a complete spec."""
        from medic.models import HEADS

        return HEADS[str(self.head)]


def find_backbone(asked: str | None, method: "Method", bench: "Benchmark") -> str:
    """Return the backbone of a run: as asked, or the method's or the benchmark's."""
    backbone = asked or method.backbone or bench.backbone
    if method.backbone not in (None, backbone):
        raise MedicError(f"method {method.name!r} works inside {method.backbone}: leave out --backbone {backbone}")
    if bench.channels != 3 and backbone != bench.backbone:
        raise MedicError(
            f"backbone {backbone!r} takes images of 3 channels, but {bench.name!r} has {bench.channels}: "
            f"use --backbone {bench.backbone}"
        )
    return backbone
