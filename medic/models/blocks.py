"""The blocks of a backbone, such as residual or transformer blocks."""

from collections.abc import Mapping, Sequence

from torch import nn

FEW = 3
"""Number of groups up to which timm's grouping of a network is too coarse. Some networks have no grouping at all."""

Blocks = list[list[nn.Parameter]]
"""Parameters by depth: those of the stem first, then those of every block."""


def find_blocks(backbone: nn.Module) -> list[nn.Module]:
    """Return the blocks of a backbone: the innermost members of its sequences that have several layers."""
    sequences = [part for part in backbone.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
    # A network may use a block twice.
    members = dict.fromkeys(member for sequence in sequences for member in sequence if _count_layers(member) > 1)
    outer = {member for member in members if any(part in members for part in member.modules() if part is not member)}
    return [member for member in members if member not in outer]


def parameters_by_depth(backbone: nn.Module) -> Blocks:
    """Return the parameters of a backbone by depth: the stem first, then every block.

    For timm models, the groups are timm's, unless these are too coarse. Networks without blocks have a group per child.
    A final norm belongs to the last group.
    """
    groups = _group_as_timm(backbone)
    if len(groups) <= FEW:
        blocks = find_blocks(backbone)
        groups = _group_by_block(backbone, blocks) if len(blocks) > 1 else _group_by_child(backbone)
    if len(groups) > 1 and all(parameter.ndim <= 1 for parameter in groups[-1]):
        last = groups.pop()
        groups[-1] = [*groups[-1], *last]
    return groups


def _group_as_timm(backbone: nn.Module) -> Blocks:
    """Return the groups that timm defines for its own models, or an empty list for other networks."""
    matcher = getattr(backbone, "group_matcher", None)
    if not callable(matcher):
        return []
    from timm.models._manipulate import group_with_matcher

    parameters = dict(backbone.named_parameters())
    names: Mapping[int, list[str]] = group_with_matcher(backbone.named_parameters(), matcher(coarse=False))
    return _nonempty([[parameters[name] for name in names[depth] if name in parameters] for depth in sorted(names)])


def _group_by_block(backbone: nn.Module, blocks: Sequence[nn.Module]) -> Blocks:
    """Return a group per block, after one for the stem. Parameters between two blocks belong to the second block."""
    owners = {parameter: number for number, block in enumerate(blocks) for parameter in block.parameters()}
    groups: list[list[nn.Parameter]] = [[] for _ in range(1 + len(blocks))]
    between = groups[0]
    for parameter in backbone.parameters():
        if parameter not in owners:
            between.append(parameter)
            continue
        group = groups[1 + owners[parameter]]
        if between is not groups[0]:
            group.extend(between)
        group.append(parameter)
        between = []
    groups[-1].extend(between)
    return _nonempty(groups)


def _group_by_child(backbone: nn.Module) -> Blocks:
    """Return a group per direct child."""
    own = list(backbone.parameters(recurse=False))
    return _nonempty([own, *(list(child.parameters()) for child in backbone.children())])


def _nonempty(groups: Blocks) -> Blocks:
    return [group for group in groups if group]


def _count_layers(module: nn.Module) -> int:
    """Return the number of layers that have weights."""
    return sum(1 for part in module.modules() if any(True for _ in part.parameters(recurse=False)))
