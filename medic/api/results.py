"""Report on finished runs, and analyse them: `medic.report` and `medic.analyze`."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medic.analysis import ANALYSES
from medic.errors import MedicError, check_choice
from medic.results.runs import Runs, find_runs, open_runs
from medic.runs.layout import check_run
from medic.runs.opening import execute_imports
from medic.runs.run import Run
from medic.utils.files import check_writable

if TYPE_CHECKING:
    from medic.analysis.result import Result
else:  # lets tools evaluate annotations without importing torch
    Result = Any

logger = logging.getLogger(__name__)


def report(
    runs: Run | Sequence[Run | Path | str] | Path | str,
    path: Path | str | None = None,
    *,
    root: Path | str | None = None,
    paper: str | None = None,
) -> Path:
    """Write an HTML report on one or several runs, and return its path.

    Args:
        runs: A run, several runs, or the folder of either. Use `load_runs(a, b)` to combine several folders.
        path: HTML file to write (default: `report.html` in the folder of the runs).
        root: For a single run, the folder with its images, to show some of them.
        paper: For several runs, a table from the paper to compare with, such as `pacs-resnet50`.
    """
    opened = open_runs(runs) if isinstance(runs, Path | str) else runs
    if isinstance(opened, Run):
        if paper is not None:
            raise MedicError(f"--paper requires a folder of runs, but {opened.path} is a single run: omit --paper")
        file = Path(path or opened.path / "report.html")
        check_writable("report", file)
        from medic.reports.run_page import write_report

        return write_report(opened, file, None if root is None else Path(root))
    collection = opened if isinstance(opened, Runs) else Runs(tuple(map(_open_run, opened)))
    folder = collection.folder
    if root is not None:
        raise MedicError(f"--root requires a single run, but {folder or 'this'} is a folder of runs: omit --root")
    if path is None and folder is None:
        raise MedicError("path is required, because these runs do not share a folder")
    file = Path(path or f"{folder}/report.html")
    check_writable("report", file)
    from medic.reports.table_page import write_table_report

    return write_table_report(collection, str(folder or "runs"), file, paper)


def _open_run(run: Run | Path | str) -> Run:
    """Return a finished run, given the run or its directory."""
    if isinstance(run, Run):
        return run
    if not isinstance(run, Path | str):
        raise MedicError(f"expected a Run or a run directory, got {type(run).__name__}")
    check_run(Path(run))
    return Run(run)


def analyze(
    name: str,
    runs: Run | Sequence[Run | Path | str] | Path | str | None = None,
    *,
    imports: Sequence[str] = (),
    **options: Any,
) -> Result:
    """Analyse finished runs. The result has `rows()`, `as_dict()` and `draw()` methods.

    Args:
        name: Name of the analysis: `gradients`, `separation`, `errors`, … (`medic analyze` lists all).
        runs: One or several runs, or their directories. For `openness` and `cost`, also folders of runs.
        imports: Python files or modules that the runs require, executed first.
        **options: Options for the analysis, as in `medic analyze --help`.
    """
    analysis = ANALYSES[check_choice("analysis", name, ANALYSES)]
    known = {option for other in ANALYSES.values() for option in other.options}
    for option in options:
        check_choice("option", option, known)
        if option not in analysis.options:
            raise MedicError(f"--{option} has no effect on analysis {name!r}: omit it")
    chosen = [] if runs is None else [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if analysis.takes == "nothing" and chosen:
        raise MedicError(f"analysis {name!r} does not use runs, got {chosen[0]}: omit it")
    if analysis.takes != "nothing" and not chosen:
        expected = {"run": "a run directory", "runs": "run directories", "folders": "folders of runs"}
        raise MedicError(f"analysis {name!r} requires finished runs: pass {expected[analysis.takes]}")
    if analysis.takes == "run" and len(chosen) > 1:
        raise MedicError(f"analysis {name!r} expects a single run, got {len(chosen)}: analyse them one by one")
    opened = _runs_in(chosen) if analysis.takes == "folders" else [_open_run(run) for run in chosen]
    execute_imports(imports)
    if analysis.takes == "nothing":
        return analysis.measure(**options)
    return analysis.measure(opened[0] if analysis.takes == "run" else opened, **options)


def _runs_in(places: Sequence[Run | Path | str]) -> list[Run]:
    """Return the given runs and all finished runs in the given folders. Log which runs are skipped."""
    collection = find_runs([Path(place) for place in places if not isinstance(place, Run)])
    for note in collection.notes():
        logger.warning("%s", note)
    return [*(place for place in places if isinstance(place, Run)), *collection.finished]
