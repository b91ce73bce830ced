"""A node whose metadata has no space on its disk: it says so, and goes on when there is some."""

import contextlib
from pathlib import Path

import pytest

from penstock.logd.errors import RefusedError
from tests.support.logd_cluster import LogdCluster
from tests.support.mounts import small_file_system
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live


def fill(directory: Path) -> Path:
    """A file that leaves no space behind it."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def test_a_controller_without_space_steps_aside_and_goes_on_when_there_is_some(
    tmp_path: Path, nats_url: str
) -> None:
    cluster = LogdCluster(tmp_path, nats_url)
    with contextlib.ExitStack() as stack:
        small = {}
        for name, node in cluster.nodes.items():
            (node.data_dir / "cluster").mkdir(parents=True)
            small[name] = stack.enter_context(small_file_system(node.data_dir / "cluster", "8m"))
        stack.enter_context(cluster)

        def controller() -> str | None:
            with cluster.client() as log:
                return log.cluster().controller

        def leader(stream: str, node: str) -> str | None:
            with contextlib.suppress(LookupError):  # the node does not know it yet
                return cluster.partition(stream, node=node).leader
            return None

        cluster.create("first", "first")
        full = str(wait_until(controller))
        filler = fill(small[full])
        status = cluster.nodes[full].daemon.status
        others = [name for name in cluster.names if name != full]
        made = 0
        with cluster.client(*others) as log:
            while "no space for the cluster" not in "".join(status()["reasons"]):
                with contextlib.suppress(RefusedError):  # the one that was under way there
                    log.create_stream(f"s{made}", f"s{made}", replication_factor=1)
                made += 1
            assert status()["health"] == "degraded"
            wait_until(lambda: controller() in others, what="another one decides")

            def is_made() -> bool:
                with contextlib.suppress(RefusedError):  # it is there, or given to the full one
                    log.create_stream("while", "while", replication_factor=1)
                return leader("while", others[0]) is not None

            wait_until(is_made, what="a stream is made meanwhile")
        filler.unlink()
        wait_until(lambda: status()["health"] == "ready", what="it goes on")
        wait_until(lambda: leader("while", full), what="it has what it missed")
        cluster.nodes[full].daemon.kill()
        cluster.start(full)
        wait_until(lambda: status()["health"] == "ready", what="it starts again")
