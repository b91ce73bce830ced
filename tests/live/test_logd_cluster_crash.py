"""kill -9 of the nodes of a metadata group, one by one and all at once, under acked changes."""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.test_logd_cluster import NAMES, _free_addresses
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]


class Node:
    """One process, and a thread that has it create streams until it is gone."""

    def __init__(self, name: str, directory: Path, boot: int, initial_members: str) -> None:
        command = [sys.executable, "-m", "tests.support.metadata_node"]
        arguments = [name, str(directory / name), f"{boot:016x}", initial_members]
        self.created: list[str] = []
        self.failed: list[str] = []
        self._log = (directory / f"{name}.log").open("ab")
        self._process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log,
        )  # fmt: skip
        self._prefix = f"{name}{boot}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._create, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """kill -9."""
        self._stop.set()
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._close()

    def stop(self) -> None:
        """Create no more."""
        self._stop.set()
        self._thread.join()

    def streams(self) -> list[str]:
        """Those there are; after `stop`."""
        answer = self._ask("list")
        assert answer.startswith("streams "), answer
        return answer.removeprefix("streams ").strip().split(",")

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()

    def _create(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        number = 0
        while line and not self._stop.is_set():
            number += 1
            line = self._ask(f"create {self._prefix}-{number}")
            match line.split():
                case ["created", stream]:
                    self.created.append(stream)
                case _:
                    self.failed.append(line)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline()


@contextmanager
def nodes(directory: Path) -> Iterator["Nodes"]:
    made = Nodes(directory)
    try:
        yield made
    finally:
        for node in made.up.values():
            node.kill()


class Nodes:
    """The three of them."""

    def __init__(self, directory: Path) -> None:
        self.up: dict[str, Node] = {}
        self.acked: list[str] = []
        self._directory = directory
        self._initial_members = json.dumps(
            dict(zip(NAMES, _free_addresses(len(NAMES)), strict=True))
        )
        self._boots = 0
        self.start(*NAMES)

    def start(self, *names: str) -> None:
        for name in names:
            self._boots += 1
            self.up[name] = Node(name, self._directory, self._boots, self._initial_members)

    def kill(self, *names: str) -> None:
        for name in names:
            node = self.up.pop(name)
            node.kill()
            self.acked += node.created

    def end(self) -> set[str]:
        """Create no more; the streams that one of them has."""
        for node in self.up.values():
            node.stop()
            self.acked += node.created
        return set(self.up[NAMES[0]].streams())

    def progress(self, count: int) -> None:
        """Wait until each node that is up has had that many more changes acked."""
        wanted = {name: len(node.created) + count for name, node in self.up.items()}
        wait_until(
            lambda: all(len(self.up[name].created) >= n for name, n in wanted.items()),
            within_s=60, what="acked changes on every node",
        )  # fmt: skip


def test_no_acked_change_of_the_metadata_is_lost_however_nodes_are_killed(tmp_path: Path) -> None:
    rng = random.Random(7)
    with nodes(tmp_path) as it:
        it.progress(3)
        for _ in range(2):
            gone = rng.choice(NAMES)
            it.kill(gone)
            it.progress(2)
            it.start(gone)
            it.progress(2)
        it.kill(*NAMES)
        it.start(*rng.sample(NAMES, 3))
        it.progress(2)
        streams = it.end()
        assert len(it.acked) > 30
        assert set(it.acked) - streams == set()
