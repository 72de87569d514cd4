"""`medic methods`."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from medic.method import Method


def add_options(parser: ArgumentParser) -> None:
    """Add the name of one method, and the output format."""
    parser.add_argument("name", nargs="?", help="show everything about one method")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: Namespace) -> int:
    """List the methods and what each differs in, or describe one of them."""
    from medic.methods import METHODS, find_method
    from medic.report.table import print_rows

    chosen = METHODS.values() if arguments.name is None else [find_method(arguments.name)]
    found = [describe(method) for method in chosen]
    if arguments.json:
        print_rows(found, as_json=True)
    elif arguments.name is not None:
        print("\n".join(_lines(found[0])))
    else:
        for entry in found:
            print("\n".join(_short(entry)))
        print(
            "\n`medic methods NAME` shows the hyperparameters of a method, their search ranges, and how it is trained."
        )
    return 0


def describe(method: "Method") -> dict[str, Any]:
    """Return everything about a method in plain values."""
    from medic.fields import hyperparameters
    from medic.objectives import OBJECTIVES, PENALTIES
    from medic.runs.recipe import DEFAULTS, method_parts, method_search

    grid, preset = method.grid, {**DEFAULTS, **method.preset}
    parts = method_parts(method)
    values = {name: value for part in parts for name, value in part.hyperparameters().items()}
    declared = [entry for part in parts for entry in hyperparameters(part.kind).items() if entry[0] in values]
    datasets = {dataset for _, field in declared for dataset in field.metadata["on"]}
    return {
        "method": method.name,
        "paper": method.paper,
        "idea": method.idea,
        "experimental": method.experimental,
        "differs in": method.differs,
        "source": method.citation,
        "grid": "each domain" if method.each_domain else " × ".join(map(str, grid.splits.values())) or "one task",
        "steps": ",".join(map(str, grid.round)) + (f" × {grid.repeat}" if grid.repeat > 1 else ""),
        "objective": preset["objective"],
        "penalty": preset.get("penalty"),
        "score": preset.get("score") or OBJECTIVES[preset["objective"]].score,
        "backbone": method.backbone,
        "training": {
            "optimizer": preset["optimizer"],
            "lr": _plain(preset.get("lr")),
            "momentum": preset["momentum"] if preset["optimizer"] == "sgd" else None,
            "weight decay": preset["weight_decay"],
            "schedule": preset["schedule"],
            "inner lr": _inner_rate(method),
            "head lr scale": None if preset["head_lr_scale"] == 1 else preset["head_lr_scale"],
            "batch norm": PENALTIES[preset["penalty"]].preset.get("batch_norm") if "penalty" in preset else None,
            "images": preset["images"],
        },
        "hyperparameters": values,
        "hyperparameters on": {
            dataset: {
                name: field.metadata["on"][dataset] for name, field in declared if dataset in field.metadata["on"]
            }
            for dataset in sorted(datasets)
        },
        "search": {name: str(law) for name, law in method_search(method, preset.get("penalty")).items()},
    }


def _plain(rate: Any) -> Any:
    """Return a learning rate as a number, or by the family of images."""
    return rate._asdict() if hasattr(rate, "_asdict") else rate


def _inner_rate(method: "Method") -> Any:
    """Return the rate of the inner steps, if the method has any."""
    from medic.strategies import InnerLoop

    strategy = method.strategy.build()
    if not isinstance(strategy, InnerLoop):
        return None
    rate = method.preset.get("inner_lr", strategy.lr)
    return "the same" if rate == "lr" else _plain(rate)


def _short(entry: dict[str, Any]) -> list[str]:
    """Describe a method in lines of at most 120 columns."""
    row = f"{entry['paper']} in the paper" if entry["paper"] else "not in the paper"
    experimental = " (experimental: our reading)" if entry["experimental"] else ""
    return [
        f"{entry['method']:<15} {entry['idea']}{experimental}",
        f"{'':<15}   {entry['differs in']}",
        f"{'':<15}   {entry['source']}; {row}; {entry['grid']}, {entry['steps']}",
    ]


def _lines(entry: dict[str, Any]) -> list[str]:
    """Describe a method completely, one fact per line."""
    training = {name: value for name, value in entry["training"].items() if name == "lr" or value is not None}
    shown = {
        "differs in": entry["differs in"],
        "source": entry["source"],
        "paper's row": entry["paper"] or "none",
        "tasks": f"{entry['grid']}, in steps of {entry['steps']}",
        "objective": " + ".join(filter(None, [entry["objective"], entry["penalty"]])) + f", score {entry['score']}",
        "backbone": entry["backbone"] or "any",
        "training": ", ".join(f"{name} {_number(value)}" for name, value in training.items()),
    }
    lines = [*_short(entry)[:1], *(f"  {name:<12} {value}" for name, value in shown.items())]
    for name, value in entry["hyperparameters"].items():
        law = entry["search"].get(name)
        others = [f"{_number(own[name])} on {on}" for on, own in entry["hyperparameters on"].items() if name in own]
        notes = "; ".join([*others, *([f"DomainBed draws {law}"] if law else [])])
        lines.append(f"  {'--hparams':<12} {name}={_number(value)}" + (f"  ({notes})" if notes else ""))
    lines += [
        f"  {'--' + name.replace('_', '-'):<12} DomainBed draws {law}"
        for name, law in entry["search"].items()
        if name not in entry["hyperparameters"]
    ]
    return [*lines, "  docs/methods.md has the update as formulas, and how its sources differ"]


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return " or ".join(f"{_number(rate)} on {family} images" for family, rate in value.items())
    return f"{value:g}" if isinstance(value, float) else "the benchmark's" if value is None else str(value)
