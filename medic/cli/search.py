"""The `medic search` command."""

import logging
from argparse import ArgumentParser, Namespace

from medic.cli.options import add_run_options, count, user_settings
from medic.config.settings import SETTINGS
from medic.errors import counted
from medic.reports.terminal import print_run, report_command

logger = logging.getLogger(__name__)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of a search and the settings of a run."""
    parser.add_argument(
        "--trials", type=count, default=20, metavar="N", help="number of additional trials (default: 20)"
    )
    parser.add_argument(
        "--study", metavar="NAME", help="name of the study (default: built from dataset, method and target)"
    )
    parser.add_argument("--storage", metavar="URL", help="URL of a shared database (default: a file in --output)")
    parser.add_argument(
        "--sampler",
        default="tpe",
        choices=("tpe", "random"),
        metavar="NAME",
        help="sampler: tpe or random (default: tpe)",
    )
    parser.add_argument(
        "--selection",
        default="validation",
        choices=("validation", "leave-one-out"),
        metavar="RULE",
        help="how to judge a trial: validation (on held-out source images) or leave-one-out (one run per source "
        "domain, tested on that domain with some known classes as unknown) (default: validation)",
    )
    parser.add_argument(
        "--metric",
        choices=("acc", "hscore", "oscr", "auroc"),
        metavar="NAME",
        help="metric for leave-one-out: acc, hscore, oscr or auroc (default: oscr, or acc if every class is known)",
    )
    parser.add_argument(
        "--no-pruning", action="store_true", help="train every trial to the end instead of stopping unpromising ones"
    )
    add_run_options(parser)


def run(arguments: Namespace) -> int:
    """Search a method's hyperparameters using source data only, and train the best trial."""
    settings = user_settings(arguments)
    # Deferred, because it imports torch.
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
        logger.warning("no trial learned anything: raise --iterations, or set a lower --lr or --inner-lr")
    print(
        f"{counted(len(study.trials), 'trial')}, {len(finished)} trained to the end; "
        f"best: trial {best.number} with {search.judge} {100 * best.value:.2f}"
    )
    for name, value in best.params.items():
        print(f"  {name} = {value:.6g}")
    chosen = search.train_best(best)
    print()
    print_run(chosen)
    print(f"run of the best trial: {chosen.path}")
    print(f"write a report with: {report_command(chosen)}")
    return 0 if has_learned(best) and chosen.learned else 1
