"""Train one run, from its settings to its run directory."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from medic.config.plan import Plan
from medic.config.resolve import resolve
from medic.errors import memory_checked, one_line
from medic.runs.build import build_network, check_network, check_objective, generators_kept
from medic.runs.data import load_images, peek_images
from medic.runs.extend import check_extension, extended
from medic.runs.facts import describe, notes
from medic.runs.hints import learning_hint
from medic.runs.interrupts import Interrupts
from medic.runs.run import Run
from medic.runs.session import Session, Watch
from medic.runs.trackers import tracker_names
from medic.runs.unfinished import divide, find_directory, finished_run
from medic.utils import distributed, memory
from medic.utils.files import writing
from medic.utils.logs import log_output

logger = logging.getLogger(__name__)


def train(
    settings: Mapping[str, Any],
    quiet: bool = False,
    watch: Watch = lambda record: None,
) -> Run:
    """Train or resume a run, or return it if it is already finished. The run directory is created in `output`.

    Processes started by `torchrun` train the run together, and the first process writes the files. Ctrl-C, SIGTERM and
    SIGHUP save a checkpoint and stop the run.
    """
    began = time.monotonic()
    with (
        memory_checked(),
        distributed.group(),
        generators_kept(),
        log_output(quiet or distributed.rank() > 0),
        _threads_restored(),
    ):
        plan, base = _prepare(settings)
        device = plan.device
        memory.reset_peak()  # set by an earlier run in this process
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        network = build_network(plan)
        # With a frozen backbone, a run reads each image at most once per view, so images need no GPU memory.
        once = plan.config.model.head_alone and plan.config.data.store == "auto"
        dataset = load_images(plan, torch.device("cpu") if once else device)
        run, directory = find_directory(plan, dataset)
        if directory.done:
            return _checked(finished_run(directory), plan)
        problem = divide(plan, dataset)
        for name, fact in describe(plan, dataset, problem, directory.path):
            logger.info("%-9s %s", name, one_line(fact))
        for line in notes(plan):
            logger.info(line)
        session = Session(plan, dataset, problem, network, directory, run, watch, began, base)
        # Several processes must stop together, after an iteration.
        late = session.describe_late if distributed.world() == 1 else None
        interrupts = Interrupts("saving a checkpoint and stopping after this iteration or evaluation", late)
        with directory.locked() if session.writes else nullcontext(), interrupts as received:
            directory.check_named(plan, run)  # again, because another process may have taken the name in the meantime
            if distributed.any_rank(session.writes and directory.done):
                return _checked(finished_run(directory), plan)
            with writing("run", directory.path):
                session.run(received)
        return _checked(Run(directory.path), plan)


def describe_plan(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts and notes that a run reports before training. Checks all settings and writes nothing."""
    with memory_checked(), _threads_restored():
        plan, _ = _prepare(settings)
        dataset = peek_images(plan)
        problem = divide(plan, dataset)
        check_objective(plan, check_network(plan), dataset, problem)
        _, directory = find_directory(plan, dataset)
        facts = list(describe(plan, dataset, problem, directory.path))
        if directory.done:
            facts.append(("state", "finished: nothing left to train"))
        elif directory.started:
            facts.append(("state", "started: training will resume from the last checkpoint"))
        return [*facts, *(("note", note) for note in notes(plan))]


def _prepare(settings: Mapping[str, Any]) -> tuple[Plan, Path | None]:
    """Resolve and check the settings; return the plan and, if it extends a run, the checkpoint to start from."""
    settings, base = extended(settings)
    plan = resolve(settings)
    if base is not None:
        check_extension(plan, base)
    torch.set_num_threads(plan.config.execution.threads or torch.get_num_threads())
    tracker_names(plan.config.execution.track)
    return plan, base


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Restore torch's number of threads on exit."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _checked(run: Run, plan: Plan) -> Run:
    """Return a finished run, and log a warning if it learned nothing."""
    if distributed.rank() == 0 and run.learning_failure:
        logger.warning("run %s learned nothing: %s; %s", run.path, run.learning_failure, learning_hint(plan))
    return run
