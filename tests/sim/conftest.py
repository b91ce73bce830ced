"""What simulations share."""

from collections.abc import Iterator

import pytest

from tests.sim.twins import Mutation


@pytest.fixture
def code() -> Iterator[Mutation]:
    """The code under test, to be changed for one test."""
    with Mutation() as mutation:
        yield mutation
