"""The `medic methods` command."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from medic.cli import catalogue
from medic.cli.options import add_import_option
from medic.errors import check_choice, respelled
from medic.reports.terminal import print_facts, print_rows

if TYPE_CHECKING:
    from medic.systems.base import Method


def add_options(parser: ArgumentParser) -> None:
    """Add the method name and the output format."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show the details of this method")
    parser.add_argument("--json", action="store_true", help="print all details as JSON")
    add_import_option(parser, "Python file or module to execute first, whose methods are also listed")


def run(arguments: Namespace) -> int:
    """List the methods and how they differ, or describe one of them."""
    rows = catalogue.rows("methods", make_rows, arguments.imports)
    if arguments.name is None and not arguments.json:
        for entry in rows:
            row = f"{entry['paper']} in the paper" if entry["paper"] else "not in the paper"
            print(_title(entry))
            print(f"{'':<15}   {entry['differs in']}")
            print(f"{'':<15}   {entry['source']}; {row}; {entry['grid']}, {entry['steps']}")
        print("\nRun `medic methods NAME` to see the hyperparameters, search ranges and training settings of a method.")
        return 0
    names = [entry["method"] for entry in rows]
    if arguments.name is not None:
        arguments.name = check_choice("method", respelled(arguments.name, names), names)
    from medic.methods import METHODS

    chosen = METHODS.values() if arguments.name is None else [METHODS[arguments.name]]
    descriptions = [describe(method) for method in chosen]
    if arguments.json:
        print_rows(descriptions, as_json=True)
    else:
        _print(descriptions[0])
    return 0


def make_rows() -> list[dict[str, Any]]:
    """Return one entry per method. Unlike importing this module, this imports torch."""
    from medic.methods import list_methods

    return list_methods()


def describe(method: "Method") -> dict[str, Any]:
    """Describe a method with plain values. A training setting that is None depends on the starting point."""
    from medic.config.parts import find_parts, search_ranges
    from medic.config.settings import DEFAULTS
    from medic.config.starts import STARTS
    from medic.methods import describe_method
    from medic.objectives import OBJECTIVES, PENALTIES
    from medic.training import AVERAGES
    from medic.utils.parts import hyperparameters

    preset = {**DEFAULTS, **method.preset}
    of_penalty = PENALTIES[preset["penalty"]].preset if "penalty" in preset else {}
    averaging = preset.get("averaging", STARTS["scratch"].averaging)
    parts = find_parts(
        method,
        preset["objective"],
        preset.get("penalty"),
        preset["layer"],
        preset.get("averaging", "none"),
        method.grid,
    )
    values = {name: value for part in parts for name, value in part.hyperparameters().items()}
    declared = [entry for part in parts for entry in hyperparameters(part.kind).items() if entry[0] in values]
    datasets = {dataset for _, field in declared for dataset in field.metadata["on"]}
    return {
        **describe_method(method),
        "objective": preset["objective"],
        "penalty": preset.get("penalty"),
        "score": preset.get("score") or OBJECTIVES[preset["objective"]].score,
        "backbone": method.backbone,
        "training": {
            "optimizer": preset.get("optimizer"),
            "lr": _plain(preset.get("lr")),
            "momentum": preset.get("momentum"),
            "weight decay": preset.get("weight_decay"),
            "schedule": preset.get("schedule"),
            "inner lr": _inner_rate(method),
            "head lr scale": None if preset["head_lr_scale"] == 1 else preset["head_lr_scale"],
            "batch norm": of_penalty.get("batch_norm", preset.get("batch_norm")),
            "images": preset["images"],
        },
        "averaging": {averaging: AVERAGES[averaging].hyperparameters() if averaging in AVERAGES else {}},
        "hyperparameters": values,
        "hyperparameters on": {
            dataset: {
                name: field.metadata["on"][dataset] for name, field in declared if dataset in field.metadata["on"]
            }
            for dataset in sorted(datasets)
        },
        "run length": {name: length for name, field in declared if (length := field.metadata["run_length"])},
        "search": {name: str(law) for name, law in search_ranges(method, preset.get("penalty")).items()},
    }


def _plain(rate: Any) -> Any:
    """Return a learning rate as a number, or as a dict keyed by image size."""
    return rate._asdict() if hasattr(rate, "_asdict") else rate


def _inner_rate(method: "Method") -> Any:
    """Return the inner learning rate, if the method sets one."""
    rate = method.preset.get("inner_lr", method.strategy.values.get("lr"))
    return "the same" if rate == "lr" else _plain(rate)


def _title(entry: dict[str, Any]) -> str:
    return f"{entry['method']:<15} {entry['idea']}" + (" (experimental)" if entry["experimental"] else "")


def _print(entry: dict[str, Any]) -> None:
    """Print the details of a method, one per line."""
    training = [f"{name} {_number(value)}" for name, value in entry["training"].items() if value is not None]
    facts = [
        ("differs in", entry["differs in"]),
        ("source", entry["source"]),
        ("paper's row", entry["paper"] or "none"),
        ("tasks", f"{entry['grid']}, in steps of {entry['steps']}"),
        ("objective", " + ".join(filter(None, [entry["objective"], entry["penalty"]])) + f", score {entry['score']}"),
        ("backbone", entry["backbone"] or "any"),
        ("needs", f"{entry['needs']} (in your own loop, see docs/tutorials/loop.md)"),
        ("training", f"{', '.join(training)}; other settings depend on the starting point (see docs/training.md)"),
        *(("averaging", f"{name} ({_listed(own)})") for name, own in entry["averaging"].items()),
    ]
    laws = {name: f"search: {law}" for name, law in entry["search"].items()}
    for name, value in entry["hyperparameters"].items():
        notes = [f"{_number(own[name])} on {on}" for on, own in entry["hyperparameters on"].items() if name in own]
        if (length := entry["run length"].get(name)) is not None:
            notes.append(f"less in a run of fewer than {length} iterations")
        notes += [laws.pop(name)] if name in laws else []
        facts.append(("--hparams", f"{name}={_number(value)}" + (f"  ({'; '.join(notes)})" if notes else "")))
    facts += [(f"--{name.replace('_', '-')}", law) for name, law in laws.items()]
    print_facts(_title(entry), facts)
    print("  see docs/methods.md for the update rule and the differences between its sources")


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_number(value)}" for name, value in values.items())


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return " or ".join(f"{_number(rate)} on {family} images" for family, rate in value.items())
    return f"{value:g}" if isinstance(value, float) else "the starting point's" if value is None else str(value)
