"""The benchmark registry. To add a benchmark, write a module in this folder and list it below."""

from medic.data.benchmarks import cmnist, digits, digits_dg, domainnet, office_home, own, pacs, terra_incognita, vlcs
from medic.data.benchmarks.base import Benchmark
from medic.utils.plugins import Group

_PUBLISHED = (digits, pacs, office_home, vlcs, terra_incognita, domainnet, digits_dg, cmnist)
BENCHMARKS: dict[str, Benchmark] = {
    bench.name: bench for bench in (*(module.BENCHMARK for module in _PUBLISHED), own.FOLDER, own.LISTS, own.TABLE)
}
BENCHMARK_GROUP = Group("medic.datasets", "dataset", Benchmark, BENCHMARKS)


def benchmark(name: str) -> Benchmark:
    """Return a benchmark by name, either built in or from an installed plug-in."""
    return BENCHMARK_GROUP.find(name)
