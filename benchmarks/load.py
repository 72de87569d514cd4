"""Many clients at once against `medic serve`: statuses, latencies, memory of the server, and whether answers are right.

    python -m benchmarks.load RUN IMAGE_OR_FOLDER… --clients 200 --seconds 60

Starts the service in its own process, unless `--url` and `--pid` name one that runs. First measures the latency of
one client that keeps its connection, then that of all clients together. Every answer is compared with
`medic.load(RUN).predict`: the same class, and a score within 1e-4. A score that close to the threshold may fall on
either side of it, by the rounding of a batch.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import numpy as np
import psutil

import medic
from medic.deploy.predictor import Prediction
from medic.utils.files import IMAGE_SUFFIXES

TOLERANCE = 1e-4
ALONE = 50
"""Requests of the one client whose latency is measured first."""


def main() -> None:
    """Start the service, load it, and print one line per fact."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between the requests of a client")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of `medic serve`")
    parser.add_argument("--url")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    files = [file for path in arguments.images for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    paths = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    expected = medic.load(arguments.run).predict(paths)
    if arguments.url:
        facts = asyncio.run(load(arguments, arguments.url, arguments.pid, paths, expected))
    else:
        command = [sys.executable, "-m", "medic", "serve", arguments.run, "--port", "0", "--quiet", *arguments.serve]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            try:
                facts = asyncio.run(load(arguments, url, process.pid, paths, expected))
            finally:
                begun = time.monotonic()
                process.terminate()
                process.wait(30)
        facts |= {"exit code": process.returncode, "seconds to stop": round(time.monotonic() - begun, 2)}
    for name, value in facts.items():
        print(f"{name:<40} {value}")
    if arguments.output:
        arguments.output.write_text(json.dumps(facts, indent=2) + "\n")


async def load(
    arguments: argparse.Namespace, url: str, pid: int | None, paths: list[Path], expected: list[Prediction]
) -> dict[str, Any]:
    address = urlsplit(url)
    head = f"POST /predict HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/octet-stream\r\n"
    bodies = [path.read_bytes() for path in paths]
    requests = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
    statuses: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    taken: list[float] = []
    refused: list[float] = []
    memory: list[float] = []
    health = f"GET /health HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    alone = {"GET /health": [health], "POST /predict": requests}
    facts: dict[str, Any] = {
        f"one client, p50, ms ({name})": milliseconds(await latencies(address, chosen), 50)
        for name, chosen in alone.items()
    }
    until = time.monotonic() + arguments.seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        turn = number
        while time.monotonic() < until:
            turn = (turn + 7919) % len(requests)
            begun = time.perf_counter()
            try:
                writer.write(requests[turn])
                status, body = await answer(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                statuses[type(error).__name__] += 1
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
                continue
            statuses[str(status)] += 1
            (taken if status == 200 else refused).append(time.perf_counter() - begun)
            if status == 200:
                check(json.loads(body), expected[turn], wrong)
            elif status == 503:
                await asyncio.sleep(1)  # Retry-After
            await asyncio.sleep(arguments.pause)
        writer.close()

    async def watch() -> None:
        process = None if pid is None else psutil.Process(pid)
        while process is not None:
            memory.append(process.memory_info().rss / 2**20)
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.1)
    results = await asyncio.gather(*(client(number) for number in range(arguments.clients)), return_exceptions=True)
    watching.cancel()
    broken = [repr(one) for one in results if isinstance(one, BaseException)]
    facts |= {
        "clients": arguments.clients,
        "seconds": arguments.seconds,
        "images": len(paths),
        "answers by status": dict(statuses),
        "answers with 200 per second": round(len(taken) / arguments.seconds, 1),
        "p50, ms (200)": milliseconds(taken, 50),
        "p99, ms (200)": milliseconds(taken, 99),
        "p99, ms (others)": milliseconds(refused, 99),
        "answers that differ": wrong["different"],
        "answers that rounding decides": wrong["on the threshold"],
        "clients that failed": broken,
    }
    if memory:
        middle = memory[len(memory) // 2]
        facts |= {
            "memory at start, MiB": round(memory[0]),
            "memory in the middle, MiB": round(middle),
            "peak memory, MiB": round(max(memory)),
        }
    return facts


async def latencies(address: SplitResult, requests: list[bytes]) -> list[float]:
    """Return the seconds that each answer to one client takes, on one connection, after a first request."""
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    taken = []
    for turn in range(ALONE + 1):
        begun = time.perf_counter()
        writer.write(requests[turn % len(requests)])
        await answer(reader)
        taken.append(time.perf_counter() - begun)
    writer.close()
    return taken[1:]


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
    size = fields.get(b"content-length")
    if size is not None:
        return int(head.split()[1]), await reader.readexactly(int(size))
    body = b""
    while (length := int((await reader.readuntil(b"\r\n")), 16)) > 0:
        body += (await reader.readexactly(length + 2))[:-2]
    await reader.readexactly(2)
    return int(head.split()[1]), body


def check(response: dict[str, Any], expected: Prediction, wrong: Counter[str]) -> None:
    (entry,) = response["predictions"]
    if abs(entry["score"] - expected.score) > TOLERANCE or entry["top"][0]["class"] != expected.top[0][0]:
        wrong["different"] += 1
    elif entry["label"] != expected.label:
        close = abs(expected.score - entry["threshold"]) <= TOLERANCE
        wrong["on the threshold" if close else "different"] += 1


def milliseconds(seconds: list[float], percentile: int) -> float | None:
    return round(1000 * float(np.percentile(seconds, percentile)), 1) if seconds else None


if __name__ == "__main__":
    main()
