"""Fixtures that every kind of test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.nats_server import running_nats_server

# How long an example takes to make says how busy the machine is, not whether the code is right.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    """The URL of a real nats-server that belongs to this test alone."""
    with running_nats_server(tmp_path / "nats") as url:
        yield url
