"""`medic search`."""

import logging
from argparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, count, user_settings
from medic.config.settings import SETTINGS
from medic.errors import counted

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of a search and those of a run."""
    parser.add_argument("--trials", type=count, default=20, metavar="N", help="number of further trials (default: 20)")
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: dataset, method and target)")
    parser.add_argument("--storage", metavar="URL", help="address of a shared database (default: a file in --output)")
    parser.add_argument(
        "--sampler", default="tpe", choices=("tpe", "random"), metavar="NAME", help="tpe or random (default: tpe)"
    )
    parser.add_argument(
        "--selection",
        default="validation",
        choices=("validation", "leave-one-out"),
        metavar="RULE",
        help="judge of a trial: validation, on held-out source images, or leave-one-out, which trains one run per "
        "source and tests it there, with some known classes as unknown ones (default: validation)",
    )
    parser.add_argument(
        "--metric",
        choices=("acc", "hscore", "oscr", "auroc"),
        metavar="NAME",
        help="metric of leave-one-out: acc, hscore, oscr or auroc (default: oscr, or acc if every class is known)",
    )
    parser.add_argument("--no-pruning", action="store_true", help="train every trial to the end")
    add_run_options(parser)


def run(arguments: Namespace) -> int:
    """Search for a method's hyperparameters with source data alone."""
    settings = user_settings(arguments)
    # Now, because it imports torch.
    from medic.sweeps.search import Study, best_trial, default_storage, finished_trials, has_learned

    known = {name: settings.get(name, SETTINGS[name].default) for name in ("dataset", "method", "target", "output")}
    target = ", ".join([known["target"]] if isinstance(known["target"], str) else known["target"] or [])
    name = arguments.study or f"{known['dataset']} {known['method']} {target}"
    storage = arguments.storage or default_storage(known["output"])
    judge = {"selection": arguments.selection, "metric": arguments.metric}
    search = Study(settings, name, storage, arguments.trials, arguments.sampler, not arguments.no_pruning, **judge)
    study = search.run()
    finished = finished_trials(study)
    best = best_trial(finished)
    if not has_learned(best):
        logger.warning("no trial learned anything: raise --iterations, or set a lower --lr or --inner-lr yourself")
    print(
        f"{counted(len(study.trials), 'trial')}, {len(finished)} trained to the end; "
        f"best: trial {best.number} with {search.judge} {100 * best.value:.2f}"
    )
    for name, value in best.params.items():
        print(f"  {name} = {value:.6g}")
    chosen = search.train_best(best)
    print(chosen.path)
    return 0 if has_learned(best) and chosen.learned else 1
