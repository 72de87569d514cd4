"""The registry of benchmarks. A new benchmark is a module of this folder and a name in the table below."""

from medic.data.benchmarks import (
    cmnist,
    digits,
    digits_dg,
    domainnet,
    office_home,
    own,
    pacs,
    terra_incognita,
    vlcs,
)
from medic.data.benchmarks.base import Benchmark
from medic.errors import check_choice

BENCHMARKS: dict[str, Benchmark] = {
    bench.name: bench
    for bench in (
        digits.BENCHMARK,
        pacs.BENCHMARK,
        office_home.BENCHMARK,
        vlcs.BENCHMARK,
        terra_incognita.BENCHMARK,
        domainnet.BENCHMARK,
        digits_dg.BENCHMARK,
        cmnist.BENCHMARK,
        own.FOLDER,
        own.LISTS,
        own.TABLE,
    )
}


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by name."""
    return BENCHMARKS[check_choice("dataset", name, BENCHMARKS)]
