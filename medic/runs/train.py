"""One run, from its settings to its directory."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from medic.config.resolve import Plan, resolve
from medic.errors import memory_checked
from medic.runs.build import build_network, check_network, generators_kept
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
    """Train a run, resume it, or return it if it is finished; its directory is created in the output directory.

    Processes started by `torchrun` train it together; the first of them writes. Ctrl-C, SIGTERM and SIGHUP stop a run
    with a checkpoint.
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
        memory.reset_peak()  # of an earlier run of this process
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        network = build_network(plan)
        # A run on features of a frozen backbone reads images at most once, so they need no room on the GPU.
        once = plan.config.model.head_alone and plan.config.data.store == "auto"
        dataset = load_images(plan, torch.device("cpu") if once else device)
        run, directory = find_directory(plan, dataset)
        if directory.done:
            return _checked(finished_run(directory), plan)
        session = Session(plan, dataset, network, directory, run, watch, began, base)
        for line in notes(plan):
            logger.info(line)
        # Several processes stop together, after an iteration.
        late = session.describe_late if distributed.world() == 1 else None
        interrupts = Interrupts("stopping with a checkpoint after this iteration or evaluation", late)
        with directory.locked() if session.writes else nullcontext(), interrupts as received:
            directory.check_named(plan, run)  # again, since another process may have used the name meanwhile
            if distributed.any_rank(session.writes and directory.done):
                return _checked(finished_run(directory), plan)
            with writing("run", directory.path):
                session.run(received)
        return _checked(Run(directory.path), plan)


def describe_plan(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that a run reports before it trains, by name, and notes; check all settings, write nothing."""
    with memory_checked(), _threads_restored():
        plan, _ = _prepare(settings)
        check_network(plan)
        dataset = peek_images(plan)
        _, directory = find_directory(plan, dataset)
        facts = list(describe(plan, dataset, divide(plan, dataset), directory.path))
        if directory.done:
            facts.append(("state", "finished: nothing is left to train"))
        elif directory.started:
            facts.append(("state", "started before: training resumes at its last checkpoint"))
        return [*facts, *(("note", note) for note in notes(plan))]


def _prepare(settings: Mapping[str, Any]) -> tuple[Plan, Path | None]:
    """Return the plan of a run, and the checkpoint of a run that it extends; find mistakes early."""
    settings, base = extended(settings)
    plan = resolve(settings)
    if base is not None:
        check_extension(plan, base)
    torch.set_num_threads(plan.config.execution.threads or torch.get_num_threads())
    tracker_names(plan.config.execution.track)
    return plan, base


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Leave torch with as many threads as before."""
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
