"""The Python that Spark's workers are started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.router.spark.session import worker_python


@pytest.mark.parametrize("own", [None, "/opt/my own:/opt/specs"])
def test_workers_have_the_drivers_path_and_not_sparks(tmp_path: Path, own: str | None) -> None:
    environ = {} if own is None else {"PYTHONPATH": own}
    program = worker_python(tmp_path / "a job's", environ=environ)
    prints = "import os, sys; print(os.environ.get('PYTHONPATH'), *sys.argv[1:])"
    said = subprocess.run(
        [program, "-c", prints, "a b"],
        env={**os.environ, "PYTHONPATH": "/opt/spark/python/lib/pyspark.zip"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == f"{own} a b\n"


def test_they_have_the_drivers_modules(tmp_path: Path) -> None:
    prints = "import sys, pyspark; print(sys.executable, pyspark.__file__)"
    command = [worker_python(tmp_path), "-c", prints]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == sys.executable
    assert said[1].endswith("site-packages/pyspark/__init__.py")


def test_where_no_program_may_run_it_is_the_driver_itself(tmp_path: Path) -> None:
    missing = "/no/such/python"  # fails, as where none may run
    assert worker_python(tmp_path, python=missing) == missing


def test_who_plans_batches_does_without_arrows_functions() -> None:
    prints = "import sys, penstock.router.read.source; print('pyarrow.compute' in sys.modules)"
    command = [sys.executable, "-P", "-c", prints]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "False\n"
