"""Take out of an environment what no part of Penstock loads, and say how much that was.

    python trim.py /opt/penstock

Of pyarrow: Flight, remote file systems, headers, tests. Of Spark: Connect, Hive, MLlib, GraphX, the
shell and coordination services that its parts use elsewhere; a job that needs one of them needs its
own image. RocksDB's jar keeps the library of this kind of machine only.
Standard library alone.
"""

# ruff: noqa: INP001 - a script, not part of a package

import platform
import shutil
import sys
import zipfile
from pathlib import Path

PYARROW = (
    "include", "tests", "src", "libarrow_flight*", "libarrow_python_flight*", "_flight.*",
    "libarrow_s3*", "_s3fs.*", "_gcsfs.*", "_azurefs.*", "_hdfs.*", "_pyarrow_cpp_tests.*",
    "*.pyx", "*.pxi", "*.pxd",
)  # fmt: skip

JARS = (
    "connect-repl", "spark-connect_*", "spark-repl_*", "spark-hive*", "spark-mllib_*",
    "spark-graphx_*", "hive-*",
    "derby*", "datanucleus-*", "breeze*", "spire*", "cats-kernel*", "algebra_*", "arpack*",
    "lapack*", "JTransforms*", "scala-compiler-*", "jline-*", "zookeeper-*", "curator-*",
    "leveldbjni-*",
)  # fmt: skip
KEPT_JARS = ("hive-storage-api*",)
"""Patterns of the jars that ORC needs."""

OTHER_SPARK = ("examples", "data", "licenses", "tests", "pandas/tests", "sql/tests", "ml/tests")
MACHINES = {"x86_64": "linux64.so", "aarch64": "linux-aarch64.so"}


def main(environment: Path) -> None:
    """Trim every package that is there."""
    before = _size(environment)
    for packages in environment.glob("lib/python3*/site-packages"):
        _remove(packages / "pyarrow", PYARROW)
        jars = packages / "pyspark" / "jars"
        if jars.is_dir():
            _remove(jars, JARS, KEPT_JARS)
            _remove(packages / "pyspark", OTHER_SPARK)
            for jar in jars.glob("rocksdbjni-*.jar"):
                _thin(jar)
    print(f"trimmed {(before - _size(environment)) / 1e6:.0f} MB")  # noqa: T201 - the build's log


def _remove(directory: Path, patterns: tuple[str, ...], kept: tuple[str, ...] = ()) -> None:
    spared = {path for pattern in kept for path in directory.glob(pattern)}
    for pattern in patterns:
        for path in set(directory.glob(pattern)) - spared:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _thin(jar: Path) -> None:
    """Leave other systems' native libraries out of RocksDB's jar."""
    own = "librocksdbjni-" + MACHINES.get(platform.machine(), "")
    thin = jar.with_suffix(".thin")
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(thin, "w", zipfile.ZIP_DEFLATED) as target:
        names = source.namelist()
        if own not in names:  # a machine that we know nothing of: leave it whole
            thin.unlink()
            return
        for name in names:
            if not name.startswith("librocksdbjni") or name == own:
                target.writestr(name, source.read(name))
    thin.replace(jar)


def _size(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
