"""Freed memory stays in the process."""

import subprocess
import sys

_FAULTS = """
from resource import RUSAGE_SELF, getrusage
from penstock.base.heap import keep_freed_memory

def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(100):
        parts = [bytes(100_000) for _ in range(30)]
        del parts
    return getrusage(RUSAGE_SELF).ru_minflt - before

print(faults())
keep_freed_memory()
print(faults())
"""


def test_memory_that_is_taken_again_needs_few_page_faults() -> None:
    run = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, check=True)
    before, after = map(int, run.stdout.split())
    assert after < 2_000 < before
