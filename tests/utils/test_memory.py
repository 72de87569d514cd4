"""The peak of memory that a run tells of is its own."""

import mmap
import sys

import pytest

from medic.utils import memory

SIZE = 200 * 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know one peak of the whole process")
def test_the_peak_of_an_earlier_run_is_forgotten():
    memory.reset_peak()
    before = memory.peak()
    with mmap.mmap(-1, SIZE) as held:  # given back when it is closed, whatever the allocator does
        for page in range(0, SIZE, mmap.PAGESIZE):
            held[page] = 1
        assert memory.peak() >= before + 0.9 * SIZE
    assert memory.peak() >= before + 0.9 * SIZE
    memory.reset_peak()
    assert memory.peak() < before + 0.5 * SIZE
