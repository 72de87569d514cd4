"""Counters and histograms in Prometheus text format."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass
class Counter:
    """Counts for each value of a label. Clients cannot choose the values, so their number is bounded."""

    label: str
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, value: str, count: int = 1) -> None:
        """Increase the count of a value."""
        self.counts[value] = self.counts.get(value, 0) + count


@dataclass
class Histogram:
    """Counts of observed values per bucket, and the sum of the values."""

    limits: Sequence[float]
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.limits) + 1)

    def observe(self, value: float) -> None:
        """Record a value."""
        self.counts[bisect_left(self.limits, value)] += 1
        self.total += value


@dataclass
class Metrics:
    """Counters and latencies since the service started. Only the event loop updates them."""

    requests: Counter = field(default_factory=lambda: Counter("status"))
    images: Counter = field(default_factory=lambda: Counter("outcome"))
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    forward: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    batches: Histogram = field(default_factory=lambda: Histogram(IMAGES))

    def text(self, gauges: Mapping[str, tuple[float, str]]) -> str:
        """Return all metrics as text. `gauges` maps each name to a value and a help text."""
        lines = [
            *_counter("medic_requests_total", "Responses by HTTP status.", self.requests),
            *_counter("medic_images_total", "Images by outcome: known, unknown or error.", self.images),
            *_histogram("medic_request_seconds", "Time from headers to response for POST /predict.", self.seconds),
            *_histogram("medic_forward_seconds", "Time per forward pass, including decisions.", self.forward),
            *_histogram("medic_batch_images", "Images per forward pass.", self.batches),
        ]
        for name, (value, text) in gauges.items():
            lines += [*_head(name, text, "gauge"), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _counter(name: str, text: str, counter: Counter) -> Iterator[str]:
    yield from _head(name, text, "counter")
    for value, count in sorted(counter.counts.items()):
        yield f'{name}{{{counter.label}="{value}"}} {count}'


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield from _head(name, text, "histogram")
    below = 0
    for limit, count in zip((*histogram.limits, "+Inf"), histogram.counts, strict=True):
        below += count
        yield f'{name}_bucket{{le="{limit}"}} {below}'
    yield f"{name}_sum {histogram.total:.9g}"
    yield f"{name}_count {below}"
