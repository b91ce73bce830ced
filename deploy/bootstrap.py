"""Make `.venv` from pyproject.toml and constraints.txt; do nothing when it is already that.

Run by `make` with whatever Python the machine has, before anything is installed: standard library
only, and syntax that Python 3.6 can still read, so that it can say what is wrong.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".installed"
CONSTRAINTS = ROOT / "constraints.txt"
FREE_GB_MIN = 2.5  # the environment takes 1 GB, pip's downloads and their unpacking the rest
STEP_S = 15.0
LINES_SHOWN = 40


def main(arguments: "list[str]") -> None:
    """Install, or with ``--constraints`` choose new versions."""
    refuse_unusable_machine()
    if arguments == ["--constraints"]:
        write_constraints()
        return
    wanted = digest()
    if STAMP.exists() and STAMP.read_text() == wanted and python_of(VENV).exists():
        STAMP.touch()
        return
    if not (VENV / "bin" / "pip").exists():  # made last: an interrupted start has none
        make_venv(VENV)
    say("installing Penstock and its pinned dependencies (the first time takes a minute or more)")
    install(VENV, ["-e", f"{ROOT}[dev]"], CONSTRAINTS)
    STAMP.write_text(wanted)
    say("ready; see .venv/bin/penstock --help")


def refuse_unusable_machine() -> None:
    """Stop, naming the fix, where no virtual environment could be made."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the point of this file
        found = "{}.{}".format(*sys.version_info[:2])
        stop(
            f"Penstock needs Python 3.11 or newer; {sys.executable} is {found}",
            "install a newer Python and name it, as in: make demo PYTHON=python3.12",
        )
    from importlib.util import find_spec

    if find_spec("venv") is None or find_spec("ensurepip") is None:
        stop(
            f"{sys.executable} has no venv module with pip",
            "on Debian or Ubuntu: apt-get install python3-venv",
        )
    free_gb = shutil.disk_usage(str(ROOT)).free / 1024**3
    if not STAMP.exists() and free_gb < FREE_GB_MIN:
        stop(
            f"{free_gb:.1f} GB are free in {ROOT}; the installation needs {FREE_GB_MIN} GB",
            "free some space, or clone to a larger disk",
        )


def make_venv(directory: Path) -> None:
    """Create an empty environment with pip."""
    say(f"creating {directory} with {sys.executable}")
    run([sys.executable, "-m", "venv", str(directory)], "see what is wrong with the directory")


def install(venv: Path, requirements: "list[str]", constraints: "Path | None") -> None:
    """Install with every version, the build's own included, held by the constraints."""
    environment = dict(os.environ)
    if constraints is not None:
        # Both names: pip from 25.3 on reads the second one for what builds the package. As a URL,
        # because pip takes a blank in the variable for the end of a path.
        environment["PIP_CONSTRAINT"] = environment["PIP_BUILD_CONSTRAINT"] = constraints.as_uri()
    pip = [str(python_of(venv)), "-m", "pip", "install", "--disable-pip-version-check"]
    pip.append("--progress-bar=off")
    pip.append("--use-pep517")  # what newer versions of pip do anyway; an old one complains else
    follow([*pip, *requirements], "check the network and pip's index, then try again", environment)


def write_constraints() -> None:
    """Resolve the newest allowed versions in their own environment and write them down."""
    with tempfile.TemporaryDirectory() as directory:
        venv = Path(directory)
        make_venv(venv)
        install(venv, ["-e", f"{ROOT}[dev]", "editables"], None)
        freeze = ["list", "--format=freeze", "--exclude-editable"]
        tools = ["--exclude", "pip", "--exclude", "setuptools"]
        pip = [str(python_of(venv)), "-m", "pip", "--disable-pip-version-check"]
        listed = subprocess.check_output([*pip, *freeze, *tools]).decode()  # noqa: S603 - our own
    header = "# Exact versions that `make` installs. Change them with `make constraints`.\n"
    CONSTRAINTS.write_text(header + listed)
    say("wrote constraints.txt; run the tests before you commit it")


def run(command: "list[str]", fix: str, environment: "dict[str, str] | None" = None) -> None:
    """Run a command; stop with its exit status and the fix when it fails."""
    try:
        subprocess.check_call(command, env=environment, stdin=subprocess.DEVNULL)  # noqa: S603
    except (subprocess.CalledProcessError, OSError) as error:
        stop(f"failed: {' '.join(command)}: {error}", fix)


def follow(
    command: "list[str]", fix: str, environment: "dict[str, str]", step_s: float = STEP_S
) -> None:
    """Run what takes long, and tell now and then what it is at; when it fails, what it said."""
    lines = []  # type: list[str]
    with subprocess.Popen(  # noqa: S603 - as `run`
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        errors="replace",
    ) as process:

        def listen() -> None:
            for line in process.stdout or ():
                lines.append(line)  # noqa: PERF402 - seen while it goes on

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        seconds = 0.0
        while listener.is_alive():
            listener.join(step_s)
            seconds += step_s
            if listener.is_alive() and lines:
                say(f"{seconds:4.0f} s  {lines[-1].strip()[:60]}")
    if process.returncode != 0:
        sys.stderr.write("".join(lines[-LINES_SHOWN:]))
        stop(f"failed with {process.returncode}: {' '.join(command)}", fix)


def digest() -> str:
    """Return the digest of all that the environment is made from, including Python's version."""
    content = hashlib.sha256(sys.version.encode())
    content.update((ROOT / "pyproject.toml").read_bytes())
    content.update(CONSTRAINTS.read_bytes())
    return content.hexdigest()


def python_of(venv: Path) -> Path:
    """The environment's interpreter."""
    return venv / "bin" / "python"


def say(text: str) -> None:
    """Tell what happens now."""
    sys.stdout.write(f"penstock: {text}\n")
    sys.stdout.flush()


def stop(reason: str, fix: str) -> None:
    """End with the reason and what to do about it."""
    sys.exit(f"error: {reason}\n  fix: {fix}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("\npenstock: interrupted; the same command goes on\n")
        sys.exit(130)
