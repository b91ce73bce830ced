"""The source `file` with a real Docker engine: logs of its containers, and what it says of them.

`make test-containers` starts the engine. The containers' image is the one that stands in for
Python's.
"""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.collector import Collector
from tests.support.logd import Logd
from tests.support.waiting import wait_until

IMAGE = "penstock-local/python:3.11-slim-bookworm"
CONTAINERS = Path("/var/lib/docker/containers")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def container() -> Iterator[tuple[str, str]]:
    """Name and id of a container that printed two lines and ended."""
    name = f"penstock-test-{uuid.uuid4().hex[:8]}"
    made = docker(
        "run", "--detach", "--network", "none", "--name", name, "--label", "team.name=shop",
        "--log-driver", "json-file", IMAGE, "python3", "-c", "print('first'); print('second')",
    )  # fmt: skip
    try:
        docker("wait", name)
        yield name, made
    finally:
        docker("rm", "--force", name)


def test_logs_of_a_container_carry_its_name_image_and_labels(
    tmp_path: Path, nats_url: str, container: tuple[str, str]
) -> None:
    name, container_id = container
    section = {
        "type": "file", "include": [f"{CONTAINERS}/{container_id}/*-json.log"],
        "format": "docker", "service": "from_container", "docker": {},
    }  # fmt: skip
    streams = [{"name": "logs", "subject": "telemetry.logs.>"}]
    with (
        Logd(tmp_path / "logd", nats_url, streams) as logd,
        Collector(tmp_path / "collector", nats_url, [section]),
    ):
        wait_until(lambda: len(logd.values("logs")) == 2)
        records = [json.loads(value or b"") for value in logd.values("logs")]
    assert [record["body"] for record in records] == ["first", "second"]
    resource = records[0]["resource"]
    assert resource["service.name"] == resource["container.name"] == name
    assert resource["container.id"] == container_id
    assert resource["container.image.name"] == IMAGE.partition(":")[0]
    assert resource["container.image.tags"] == [IMAGE.partition(":")[2]]
    assert resource["container.label.team.name"] == "shop"
