"""What a product is here: how it is had and started, and the tests that are run against it."""

import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until

_READY_S = 40.0
_END_S = 60


class UnavailableError(Exception):
    """It cannot be had or run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        title: Its name and version.
        running: In a directory, while its tests run; gives the environment that names it to them,
            and raises UnavailableError.
        tests: Files.
        about: Which of their tests, as pytest's `-k` has it.
    """

    title: str
    running: Callable[[Path], AbstractContextManager[Mapping[str, str]]]
    tests: tuple[str, ...]
    about: str


@contextmanager
def process(
    command: Sequence[str | Path], ready: Callable[[], bool], log: Path, **how: Any
) -> Iterator[int]:
    """The pid of a server, from when it is ready on; it is ended behind.

    Raises:
        UnavailableError: It ends, or does not come up.
    """
    with log.open("wb") as to:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=to, stderr=to, **how
        )  # fmt: skip

    def settled() -> bool:
        return running.poll() is not None or ready()

    try:
        try:
            wait_until(settled, within_s=_READY_S, what=f"{command[0]} is ready")
        except AssertionError as error:
            raise UnavailableError(f"{error}; see {log}") from error
        if running.poll() is not None:
            raise UnavailableError(f"it ended with {running.returncode}; see {log}")
        yield running.pid
    finally:
        running.terminate()
        running.wait(timeout=_END_S)


def answers(url: str, body: bytes | None = None) -> bool:
    """Whether it answers with 200, to a body of JSON where there is one."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
