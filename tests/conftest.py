"""Fixtures that every kind of test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nats_server import running_nats_server


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a real nats-server that belongs to this test alone."""
    with running_nats_server(tmp_path / "nats") as url:
        yield url
