"""The `medic predict` command."""

import logging
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import islice, tee
from pathlib import Path
from typing import TypeVar

from medic.cli.options import add_device_option, add_import_option, count, output_file
from medic.errors import MedicError
from medic.runs.opening import check_model, holds_run, open_model
from medic.utils.logs import console, log_output

T = TypeVar("T")
logger = logging.getLogger(__name__)

EVERY = 0.2
"""Seconds between two updates of the progress display."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of `medic predict`."""
    parser.add_argument("run", metavar="RUN", help="finished run directory or saved model")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="images, folders, quoted patterns, @FILE with one path per line, or - for standard input",
    )
    parser.add_argument(
        "--top", type=count, default=3, metavar="K", help="number of most likely classes per image (default: 3)"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_file,
        metavar="FILE",
        help="file to write: .csv, .jsonl or .parquet (default: standard output)",
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        help="output format: csv, jsonl or parquet (default: from the file name, otherwise csv)",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="X",
        help="label images with a lower score unknown (default: the run's threshold)",
    )
    add_device_option(parser, default="auto")
    add_import_option(parser)
    parser.add_argument(
        "--batch-size", type=count, metavar="N", help="images per forward pass (default: 64, or 512 on a GPU)"
    )
    parser.add_argument("--quiet", action="store_true", help="hide the progress and the summary")


def run(arguments: Namespace) -> int:
    """Write one row per image. Return 1 if an image could not be read."""
    from medic.deploy.paths import image_paths
    from medic.deploy.writers import open_writer, pick_format

    output: Path | None = arguments.output
    kind = pick_format(output, arguments.format)
    if Path(arguments.run).exists() and not holds_run(arguments.run):
        raise MedicError(f"{arguments.run} is not a run or a model: pass the run first, then the images")
    check_model(arguments.run)
    named, read = tee(image_paths(arguments.paths))  # buffers only the paths between reading and writing
    # Waiting torch threads must not block the decoding threads. torch reads this variable when it is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    predictor, _ = open_model(arguments.run, arguments.device, arguments.imports)
    if arguments.threshold is not None:
        predictor = predictor.at(arguments.threshold)
    top = min(arguments.top, len(predictor.classes))
    prints_rows = output is None and sys.stdout.isatty()
    counts: Counter[str] = Counter()
    with log_output(arguments.quiet), closing(predictor.stream(read, top, arguments.batch_size)) as results:
        first = list(islice(results, 1))  # an unusable model must fail before anything is written
        if not first:
            raise MedicError(f"no image paths found in {', '.join(arguments.paths)}: write one path per line")
        results = _chained(first, results)
        with (
            open_writer(output, kind, top, predictor.display_threshold) as writer,
            closing(results if prints_rows else _with_progress(results)) as results,
        ):
            for path, result in zip(named, results, strict=True):
                writer.write(path, result)
                counts["unreadable" if isinstance(result, Exception) else "known" if result.known else "unknown"] += 1
        logger.info("%s%s", _summary(counts), "" if output is None else f"; saved to {output}")
    return 1 if counts["unreadable"] else 0


def _chained(first: list[T], rest: Iterator[T]) -> Generator[T]:
    yield from first
    yield from rest


def _with_progress(results: Iterator[T]) -> Generator[T]:
    """Yield the results. If messages go to a terminal, show the number of results and the speed."""
    if not (logger.isEnabledFor(logging.INFO) and console().is_terminal):
        yield from results
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    # Redirection would send the rows on standard output to standard error.
    with Progress(*columns, console=console(), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("waiting for the first image")
        began = last = time.monotonic()
        for count, result in enumerate(results, start=1):
            yield result
            now = time.monotonic()
            if now - last >= EVERY:
                last = now
                bar.update(task, description=f"{_images(count)}  {count / (now - began):,.0f} images/s")


def _summary(counts: Mapping[str, int]) -> str:
    parts = [f"{counts[name]:,} {name}" for name in ("known", "unknown")]
    parts += [f"{counts['unreadable']:,} unreadable"] if counts["unreadable"] else []
    return f"{_images(sum(counts.values()))}: {', '.join(parts)}"


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"
