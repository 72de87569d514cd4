"""Try many inputs in a child process with limits on time and memory, and count what happens to them.

A *door* is a way into medic. Input number i of a seed is always the same. An input is accepted, or refused by a
`MedicError`. Anything else is a fault: another exception, a process that dies or hangs, a file that is written
outside the folder, another program that is started.
"""

import contextlib
import faulthandler
import io
import itertools
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import medic.runs.train  # noqa: F401, once for all children
from medic.utils import memory

SECONDS = 10.0
"""The time after which an input counts as hanging."""
MEMORY = 2 * 2**30
"""Bytes of memory that a child may use beyond what it has at its start."""
FILE = 16 * 2**30
"""The largest file that a child may write."""


BATCH = 256
"""Inputs that a child is given at a time; it reports each of them."""
STACKS = "stacks.txt"
"""The file in which a child that hangs writes where it is."""


class Fault(AssertionError):
    """Medic did something else than accepting an input or refusing it."""


@dataclass(frozen=True)
class Door:
    """A way into medic: `prepare` fills a folder, `attempt` makes an input in it and returns whether it was accepted.

    An input is made of the random numbers that `attempt` receives, and of nothing else. `setup` is called in each child
    before its first input.
    """

    name: str
    prepare: Callable[[Path], None]
    attempt: Callable[[Path, random.Random], bool]
    count: int = 1000
    setup: Callable[[], object] = lambda: None


@dataclass
class Summary:
    """The counts of some inputs."""

    door: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    faults: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the inputs that caused each fault."""
    memory: int = 0
    """The peak memory in bytes beyond that at the start."""
    slowest: float = 0.0
    """Seconds on the CPU of the slowest input; if one hangs, the limit."""
    seconds: float = 0.0

    def add(self, number: int, outcome: "bool | str", seconds: float, memory: int) -> None:
        """Count one input."""
        self.inputs += 1
        self.memory, self.slowest = max(self.memory, memory), max(self.slowest, seconds)
        if isinstance(outcome, str):
            self.faults.setdefault(outcome, []).append(number)
        elif outcome:
            self.accepted += 1
        else:
            self.refused += 1

    def lines(self, seed: int) -> Iterator[str]:
        """Yield the summary for people."""
        faulty = sum(map(len, self.faults.values()))
        kinds = {kind: sum(len(n) for text, n in self.faults.items() if kind in text) for kind in ("hang", "outside")}
        yield f"{self.door}, seed {seed}: {self.inputs} inputs in {self.seconds:.0f} s"
        yield f"  accepted             {self.accepted}"
        yield f"  refused in one line  {self.refused}"
        yield f"  hangs                {kinds['hang']}"
        yield f"  accesses outside     {kinds['outside']}"
        yield f"  other faults         {faulty - sum(kinds.values())}"
        yield f"  peak memory          {self.memory / 2**20:.0f} MiB more than at the start"
        yield f"  slowest input        {self.slowest:.2f} s of CPU time"
        for text, numbers in sorted(self.faults.items(), key=lambda fault: -len(fault[1])):
            yield f"{len(numbers):6d} × {text}  (--seed {seed} --only {numbers[0]})"


def fuzz(door: Door, folder: Path, numbers: Iterable[int], seed: int = 0, seconds: float = 1e9) -> Summary:
    """Try the inputs of a door with these numbers, for some seconds at most.

    A child process that dies or hangs is replaced, and goes on with the next input.
    """
    summary, began, left = Summary(door.name), time.monotonic(), iter(numbers)
    context = multiprocessing.get_context("fork")
    folder.mkdir(parents=True, exist_ok=True)
    while (number := next(left, None)) is not None and time.monotonic() - began < seconds:
        ours, theirs = context.Pipe()
        child = context.Process(target=_serve, args=(door, folder, seed, theirs))
        child.start()
        theirs.close()
        ours.recv()  # the door is prepared
        waiting = deque([number])
        while time.monotonic() - began < seconds:
            waiting.extend(itertools.islice(left, BATCH - len(waiting)))
            if not waiting:
                break
            ours.send(tuple(waiting))
            if not _collect(summary, waiting, ours, child, folder):
                break
        child.kill()
        child.join()
        left = itertools.chain(waiting, left)
    summary.seconds = time.monotonic() - began
    return summary


def _collect(summary: Summary, waiting: deque[int], pipe: Connection, child: Any, folder: Path) -> bool:
    """Count the inputs that wait, as their outcomes arrive; return whether the child can try more."""
    while waiting:
        started = time.monotonic()
        try:
            report = pipe.recv() if pipe.poll(SECONDS) else (f"hangs at {_stack(folder)}", SECONDS, 0)
        except EOFError:
            child.join()
            report = (f"dies with exit code {child.exitcode}", time.monotonic() - started, 0)
        summary.add(waiting.popleft(), *report)
        if "hangs at" in str(report[0]) or "dies with" in str(report[0]):
            return False
    return True


def _serve(door: Door, folder: Path, seed: int, pipe: Connection) -> None:
    """Try each input whose number is received, and send back its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.dont_write_bytecode = True
    os.fsync = lambda _: None  # most of the time would go there
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff writes there
    os.environ["MEDIC_CACHE"], os.environ["TMPDIR"] = str(folder / "cache"), str(folder)
    if not (folder / "ready").exists():
        door.prepare(folder)
        (folder / "ready").touch()
    door.setup()
    _watch_accesses(folder)
    memory.reset_peak()
    start, size = memory.peak(), int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    stacks = (folder / STACKS).open("w")
    pipe.send(None)
    armed = measured = -math.inf
    with contextlib.suppress(EOFError):
        for number in itertools.chain.from_iterable(iter(pipe.recv, None)):
            began, used = time.monotonic(), time.process_time()
            _ACCESSES.clear()
            if began - armed > 0.1 * SECONDS:  # not for each input, as it starts a thread
                faulthandler.dump_traceback_later(0.9 * SECONDS, file=stacks)
                armed = began
            outcome = attempt(door, folder, seed, number)
            if _ACCESSES:
                outcome = f"outside the folder: {_ACCESSES[0]}"
            ended, peak = time.monotonic(), 0
            if ended - measured > 0.02:
                peak, measured = memory.peak() - start, ended
            pipe.send((outcome, time.process_time() - used, peak))


def attempt(door: Door, folder: Path, seed: int, number: int) -> "bool | str":
    """Return whether an input is accepted, or the fault that it causes."""
    try:
        return door.attempt(folder, random.Random(f"{door.name}/{seed}/{number}"))
    except Fault as fault:
        return str(fault).replace(str(folder), "")
    except BaseException as error:  # also those of Rust and of sys.exit
        return f"{type(error).__name__} at {_place(error)}: {re.sub(r'[0-9]+', 'N', str(error))[:80]!r}"


def _stack(folder: Path) -> str:
    """Return the lines of medic in which the threads of a child are."""
    lines = re.findall(r'/medic/(\S+)", line (\d+)', (folder / STACKS).read_text())
    return ", ".join(sorted({f"{file}:{number}" for file, number in lines[:3]})) or "an unknown line"


def _place(error: BaseException) -> str:
    """Return the innermost line of medic that an exception passed, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}" for frame in frames]
    ours = [place for place, frame in zip(places, frames, strict=True) if "/medic/" in frame.filename]
    return " ← ".join(dict.fromkeys([*places[-1:], *ours[-1:]]))


_ACCESSES: list[str] = []
_CHANGES = {"os.mkdir": 0, "os.rename": 1, "os.symlink": 1, "os.link": 1, "os.remove": 0, "os.rmdir": 0, "os.chmod": 0,
            "os.chown": 0, "os.utime": 0}  # fmt: skip
"""Audit events that change a path, and the position of the path in their arguments."""
_LEAVES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo")
_COMPILER = re.escape(f"{tempfile.gettempdir()}/torchinductor_")  # a folder that torch makes when it is imported
_ALLOWED = re.compile(f"/dev/null|/proc/[0-9]+/clear_refs|/dev/tty|{_COMPILER}.*")


def _watch_accesses(folder: Path) -> None:
    """Note every change of a file outside a folder, every other program, and every connection, for this process."""
    inside = os.path.realpath(folder)

    def note(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and values[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            path = values[0] if isinstance(values[0], int) else os.path.realpath(values[0])
        elif event in _CHANGES and values[-1] == -1:  # relative to no open folder, as in rmtree
            parent, name = os.path.split(os.fsdecode(values[_CHANGES[event]]))
            path = f"{os.path.realpath(parent or '.')}/{name}"
        elif event in _LEAVES and "git" not in str(values[0]):  # a run records its commit
            path = f"{values[0]} {values[1] if len(values) > 1 else ''}"
        else:
            return
        text = inside if isinstance(path, int) else os.fsdecode(path)
        if text != inside and not text.startswith(f"{inside}/") and not _ALLOWED.fullmatch(text):
            _ACCESSES.append(f"{event} {text}")

    sys.addaudithook(note)


def command(*arguments: str) -> tuple[int, str, str]:
    """Run a command of medic in this process; return its exit code and what it printed."""
    from medic.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(list(arguments))
    errors = [line for line in err.getvalue().splitlines() if line.startswith("medic: error: ")]
    if "Traceback" in err.getvalue() or (code == 2) != (len(errors) == 1) or code not in (0, 1, 2):
        raise Fault(f"medic {arguments[0]} exits with {code} and {len(errors)} error lines")
    if code == 2 and err.getvalue().splitlines()[-1] != errors[0]:
        raise Fault(f"medic {arguments[0]}: its error has several lines")
    return code, out.getvalue(), err.getvalue()
