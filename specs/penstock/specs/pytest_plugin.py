"""The pytest plugin: the fixture `specs_capture`, found by its entry point."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.specs.testing import Capture


@pytest.fixture
def specs_capture() -> "Iterator[Capture]":
    """The records that the test emits; the test fails at its end if one breaks its spec."""
    from penstock.specs.testing import capturing, configured

    with configured(), capturing() as capture:
        yield capture
        capture.assert_well_formed()
