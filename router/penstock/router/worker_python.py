"""The Python of Spark's workers: the driver's, with pyspark from where the driver has it.

Spark puts its own copy of pyspark, a zip without compiled code, and a jar in front of PYTHONPATH.
Each of a job's many Python processes then compiles what it imports: more than a second of processor
time before it answers, and Spark gives one 10 s. The driver imports pyspark from a directory, which
workers on the same machine can do as well.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.base.files import atomic_write

_TIMEOUT_S: Final = 30

_SCRIPT: Final = """\
#!/bin/sh
export PYTHONSAFEPATH=1
{path}
exec {python} "$@"
"""


def worker_python(
    work_dir: Path, *, environ: Mapping[str, str] | None = None, python: str = sys.executable
) -> str:
    """A program that is this Python, and leaves Spark's entries of PYTHONPATH out.

    Args:
        work_dir: Where it is written.
        environ: The driver's environment; the process's own by default.
        python: The driver's Python.

    Returns:
        Its path; this Python itself where no program may be run in `work_dir`.
    """
    own = (os.environ if environ is None else environ).get("PYTHONPATH")
    path = "unset PYTHONPATH" if own is None else f"export PYTHONPATH={shlex.quote(own)}"
    script = work_dir.resolve() / "python" / "python3"
    text = _SCRIPT.format(path=path, python=shlex.quote(python))
    atomic_write(script, text, mode=0o755, durable=False, parents=True)
    return str(script) if _runs(script) else python


def _runs(script: Path) -> bool:
    try:
        subprocess.run([script, "-V"], capture_output=True, timeout=_TIMEOUT_S, check=True)  # noqa: S603 - just written
    except (OSError, subprocess.SubprocessError):
        return False
    return True
