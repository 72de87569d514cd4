"""Training a part of a backbone: its last blocks, its normalisation layers, or low-rank adapters."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from medic.errors import MedicError, counted

TUNES = ("all", "last:N", "norm", "adapters", "head")
"""The values of `--tune`."""
ADAPTED = ("qkv", "q", "k", "v", "kv", "q_proj", "k_proj", "v_proj", "proj", "out_proj", "fc1", "fc2")
"""Names of the linear layers of attention and MLPs in timm's models."""


@dataclass(frozen=True)
class Tune:
    """The part of a backbone that is trained beside the head."""

    kind: Literal["all", "last", "norm", "adapters", "head"]
    blocks: int = 0
    """The number N of `last:N`."""
    rank: int = 8
    """The rank of adapters."""
    alpha: float = 16.0
    """The scale of adapters, which is divided by their rank."""
    dropout: float = 0.0
    """The probability that an input of an adapter is dropped."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `all`, `last:N`, `norm`, `adapters` or `head`."""
        if match := re.fullmatch(r"last:([1-9]\d{0,3})", text):
            return cls("last", int(match[1]))
        if text not in ("all", "norm", "adapters", "head"):
            raise MedicError(f"tune is {text!r}: give {', '.join(TUNES[:-1])} or {TUNES[-1]}")
        return cls(text)  # type: ignore[arg-type]


class LowRank(nn.Linear):
    """A linear layer with a low-rank adapter: W x + b + (alpha / rank) · B A dropout(x), of which A and B are trained.

    Its weight and bias keep their names, so that the layer takes the weights of a plain one. B starts at zero, so that
    training starts at the pretrained network.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scale, self.dropout = alpha / rank, dropout
        like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        self.lora_a = nn.Parameter(torch.empty(rank, layer.in_features, **like))
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))  # the initialisation of nn.Linear
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (…, in_features) to (…, out_features)."""
        inside = functional.dropout(x, self.dropout, self.training) if self.dropout else x
        low = functional.linear(functional.linear(inside, self.lora_a), self.lora_b)
        return functional.linear(x, self.weight, self.bias) + self.scale * low

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return a plain layer that computes the same."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        # In double precision, so that a product of small numbers is not rounded before it is added.
        product = self.lora_b.double() @ self.lora_a.double()
        layer.weight = nn.Parameter((self.weight.double() + self.scale * product).to(self.weight.dtype))
        layer.bias = self.bias
        return layer.train(self.training)


def tune_backbone(backbone: nn.Module, tune: Tune) -> None:
    """Leave only the parameters that `tune` names trainable, and insert adapters if it asks for them."""
    if tune.kind == "all":
        return
    backbone.requires_grad_(False)
    if tune.kind == "adapters":
        _insert_adapters(backbone, tune)
    elif tune.kind == "norm":
        # By name, because networks define their own, such as timm's RmsNorm.
        parts = [part for part in backbone.modules() if "norm" in type(part).__name__.lower()]
        norms = [parameter for part in parts for parameter in part.parameters(recurse=False)]
        if not norms:
            raise MedicError("tune 'norm': this backbone has no normalisation layer with parameters: use --tune last:1")
        _train(norms)
    elif tune.kind == "last":
        blocks = find_blocks(backbone)
        if tune.blocks >= len(blocks):
            has = f"this backbone has {counted(len(blocks) - 1, 'block')} after its stem"
            raise MedicError(f"tune 'last:{tune.blocks}': {has}; use --tune all, or a smaller number")
        _train(parameter for block in blocks[-tune.blocks :] for parameter in block)


def _insert_adapters(backbone: nn.Module, tune: Tune) -> None:
    """Replace the linear layers of attention and MLPs by layers with adapters."""
    layers = [
        (part, name, layer)
        for part in backbone.modules()
        for name, layer in part.named_children()
        if type(layer) is nn.Linear and name in ADAPTED
    ]
    if not layers:
        raise MedicError(
            "tune 'adapters': this backbone has no linear layers of attention or MLPs, as transformers have them; use "
            "--tune norm or last:N"
        )
    for part, name, layer in layers:
        setattr(part, name, LowRank(layer, tune.rank, tune.alpha, tune.dropout))


def merge_adapters(model: nn.Module) -> None:
    """Replace layers with adapters by plain layers that compute the same; their weights are then trainable."""
    for part in list(model.modules()):
        for name, layer in part.named_children():
            if isinstance(layer, LowRank):
                setattr(part, name, layer.merged())


def find_blocks(backbone: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of a backbone by depth: the stem, then every block.

    Blocks are those of timm, such as residual and transformer blocks. In other networks they are the direct children.
    """
    parameters = dict(backbone.named_parameters())
    if callable(matcher := getattr(backbone, "group_matcher", None)):
        from timm.models._manipulate import group_with_matcher

        groups = group_with_matcher(backbone.named_parameters(), matcher(coarse=False))
        names = [groups[depth] for depth in sorted(groups)]
    else:
        names = [[name for name, _ in backbone.named_parameters(recurse=False)]]
        for child, part in backbone.named_children():
            names.append([f"{child}.{name}" for name, _ in part.named_parameters()])
    blocks = [[parameters[name] for name in group if name in parameters] for group in names]
    blocks = [block for block in blocks if block]
    # A final norm belongs to the last block.
    if len(blocks) > 1 and all(parameter.ndim <= 1 for parameter in blocks[-1]):
        last = blocks.pop()
        blocks[-1] = [*blocks[-1], *last]
    return blocks


def _train(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.requires_grad_()
