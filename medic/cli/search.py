"""`medic search`."""

from jsonargparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, run_config


def add_options(parser: ArgumentParser) -> None:
    """How long to search, and where the study is kept."""
    parser.add_argument("--trials", type=int, default=20, help="further trials to do [20]")
    parser.add_argument("--study", type=str | None, default=None, help="name of the study (dataset, method and target)")
    parser.add_argument(
        "--storage", type=str | None, default=None, help="address of its database, to share it (a file in the output)"
    )
    parser.add_argument("--sampler", type=str, default="tpe", help="tpe or random [tpe]")
    parser.add_argument("--no-pruning", action="store_true", help="train every trial to the end")
    add_run_options(parser)


def run(arguments: Namespace) -> int:
    """Search for a method's numbers, by source validation."""
    import sys

    from medic.errors import MedicError, counted
    from medic.sweeps.search import Study, default_storage

    if arguments.trials < 1:
        raise MedicError(f"trials is {arguments.trials}: give a whole number, 1 or more")
    config = run_config(arguments)
    name = arguments.study or f"{config.dataset} {config.method} {config.target_names}"
    storage = arguments.storage or default_storage(config.output)
    study = Study(config, name, storage, arguments.trials, arguments.sampler, not arguments.no_pruning)
    found = study.run(lambda line: print(line, file=sys.stderr, flush=True))
    best, trials = found.best, counted(found.trials, "trial")
    ended = f"{trials}, {found.complete} trained to the end"
    print(f"{ended}; the best, trial {best.trial}, has validation acc {100 * best.acc:.2f}")
    for number, chosen in best.numbers.items():
        print(f"  {number} = {chosen:.6g}")
    print(best.run)
    return 0
