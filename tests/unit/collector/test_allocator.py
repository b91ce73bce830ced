"""The collector's Arrow keeps no pool of memory."""

import os
import subprocess
import sys

import pytest

SHOW = (
    "import penstock.collector.cli.main, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
)


@pytest.mark.parametrize(("asked", "found"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_arrow_takes_memory_by_malloc_unless_somebody_says_otherwise(
    asked: str | None, found: str
) -> None:
    name = "ARROW_DEFAULT_MEMORY_POOL"
    environment = {key: value for key, value in os.environ.items() if key != name}
    if asked:
        environment[name] = asked
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == found
