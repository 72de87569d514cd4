"""`medic methods`."""

from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

if TYPE_CHECKING:
    from medic.methods import Method


def add_options(parser: ArgumentParser) -> None:
    """Which, and how to print."""
    parser.add_argument("name", nargs="?", help="one of them, to see all of it")
    parser.add_argument("--json", action="store_true", help="print as JSON, with all of each")


def run(arguments: Namespace) -> int:
    """List the methods with what each differs in, or one of them with its numbers."""
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
        print("\nmedic methods NAME shows its numbers, where they are searched for, and how it is trained.")
    return 0


def describe(method: "Method") -> dict[str, Any]:
    """All of a method, in plain values."""
    from medic.methods import OBJECTIVES, own_numbers

    training, grid = method.training, method.grid
    return {
        "method": method.name,
        "paper": method.paper,
        "idea": method.idea,
        "experimental": method.experimental,
        "differs in": method.differs,
        "source": method.citation,
        "grid": "each domain" if method.each_domain else " × ".join(map(str, grid.splits.values())) or "one task",
        "steps": ",".join(map(str, grid.round)) + (f" × {grid.repeat}" if grid.repeat > 1 else ""),
        "CUDA graph": method.capturable,
        "objective": method.objective,
        "penalty": method.penalty,
        "score": method.score or OBJECTIVES[method.objective].score,
        "backbone": method.backbone,
        "training": {
            "optimizer": training.optimizer,
            "lr": training.lr if isinstance(training.lr, float | int | None) else training.lr._asdict(),
            "momentum": training.momentum if training.optimizer == "sgd" else None,
            "weight decay": training.weight_decay,
            "schedule": training.schedule,
            "inner lr": _inner_rate(method),
            "head lr scale": None if training.head_lr_scale == 1 else training.head_lr_scale,
            "batch norm": None if method.batch_norm == "local" else method.batch_norm,
            "images": training.images,
        },
        "numbers": own_numbers(method),
        "numbers on": {
            name: {number.partition(".")[2]: value for number, value in numbers.items()}
            for name, numbers in method.numbers.items()
        },
        "search": {name: str(law) for name, law in method.search.items()},
    }


def _inner_rate(method: "Method") -> Any:
    """The rate of inner steps, where there are any."""
    from medic.strategies import InnerLoop

    rate = method.training.inner_lr
    if not isinstance(method.strategy, InnerLoop):
        return None
    if rate is None:
        return method.strategy.lr
    if rate == "lr":
        return "the same"
    return rate if isinstance(rate, str | float | int) else rate._asdict()


def _short(entry: dict[str, Any]) -> list[str]:
    """Lines of at most 120 columns: what it is, what it differs in, and the rest."""
    row = f"{entry['paper']} in the paper" if entry["paper"] else "not in the paper"
    graph = "one CUDA graph" if entry["CUDA graph"] else "no CUDA graph"
    experimental = " (experimental: our reading)" if entry["experimental"] else ""
    return [
        f"{entry['method']:<15} {entry['idea']}{experimental}",
        f"{'':<15}   {entry['differs in']}",
        f"{'':<15}   {entry['source']}; {row}; {entry['grid']}, {entry['steps']}; {graph}",
    ]


def _lines(entry: dict[str, Any]) -> list[str]:
    """Everything, a line each."""
    training = {name: value for name, value in entry["training"].items() if name == "lr" or value is not None}
    lines = _short(entry)[:1]
    shown = {
        "differs in": entry["differs in"],
        "source": entry["source"],
        "paper's row": entry["paper"] or "none",
        "tasks": f"{entry['grid']}, in steps of {entry['steps']}",
        "objective": " + ".join(filter(None, [entry["objective"], entry["penalty"]])) + f", read by {entry['score']}",
        "backbone": entry["backbone"] or "any",
        "training": ", ".join(f"{name} {_number(value)}" for name, value in training.items()),
        "CUDA graph": "yes" if entry["CUDA graph"] else "no",
    }
    lines += [f"  {name:<12} {value}" for name, value in shown.items()]
    for name, value in entry["numbers"].items():
        law = entry["search"].get(name)
        others = [f"{_number(own[name])} on {where}" for where, own in entry["numbers on"].items() if name in own]
        notes = "; ".join([*others, *([f"DomainBed draws {law}"] if law else [])])
        lines.append(f"  {'--hparams':<12} {name}={_number(value)}" + (f"  ({notes})" if notes else ""))
    lines += [
        f"  {'--' + name.replace('_', '-'):<12} DomainBed draws {law}"
        for name, law in entry["search"].items()
        if name not in entry["numbers"]
    ]
    return [*lines, "  docs/methods.md has the update as formulas, and what a source did differently"]


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return " or ".join(f"{_number(rate)} on {family} images" for family, rate in value.items())
    return f"{value:g}" if isinstance(value, float) else "the benchmark's" if value is None else str(value)
