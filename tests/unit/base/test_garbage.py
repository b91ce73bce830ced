"""Garbage collection put off while much is made that stays."""

import gc

from penstock.base.garbage import uncollected


def test_collections_are_off_within_the_outermost_block_and_on_after_it() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collections_that_are_off_anyway_stay_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
