"""Encrypted logs live through what plain ones do, and no nonce ever comes twice.

`PENSTOCK_SIM_SEEDS` sets how many seeds run, `PENSTOCK_SIM_SEED` the first of them.
"""

import os
from collections import Counter
from functools import partial
from typing import Any

import pytest

from penstock.logd.encryption.cipher import Encryptor, SegmentCipher
from penstock.logd.format.frame import FrameHeader
from penstock.logd.storage import CommitLog
from tests.sim.nonces import NonceDisk
from tests.sim.rewriting_world import run_seed as rewrite_seed
from tests.sim.store_world import run_seed as store_seed
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "150"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
pytestmark = pytest.mark.timeout(240)
TWIN_SEEDS = 100
CIPHER = SegmentCipher({1: bytes(32), 2: bytes(range(32))}, b"00ff/0")
OPEN = partial(CommitLog.open, cipher=CIPHER)


def test_an_encrypted_log_keeps_what_was_synced_and_repeats_no_nonce() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        disk = NonceDisk()
        counts.update(store_seed(seed, disk=disk, opener=OPEN).counts)
        assert disk.seen
    if SEEDS >= 150:
        rare = {"failed", "truncate", "reset", "row F", "row E"}
        assert {what for what in rare if counts[what] < 5} == set(), counts


def test_rewriting_an_encrypted_log_survives_power_losses_and_repeats_no_nonce() -> None:
    counts: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS // 2):
        counts.update(rewrite_seed(seed, cuts=True, disk=NonceDisk(), cipher=CIPHER))
    assert counts
    if SEEDS >= 150:
        assert {w for w in ("swapped", "truncate", "row N") if counts[w] < 3} == set(), counts


def is_caught() -> bool:
    """Whether a seed shows that a nonce comes twice, or that a frame is not itself any more."""
    for seed in range(TWIN_SEEDS):
        try:
            store_seed(seed, disk=NonceDisk(), opener=OPEN)
            rewrite_seed(seed, cuts=True, disk=NonceDisk(), cipher=CIPHER)
        except AssertionError as error:
            return "a nonce came twice" in str(error)
    return False


def test_simulation_catches_nonces_made_of_offsets(code: Mutation) -> None:
    """A tail that is cut off and written again has the same offsets."""

    def by_offset(really: Any, self: Any, header: FrameHeader, body: bytes) -> Any:
        self._count = header.base_offset
        return really(self, header, body)

    code.wrap(Encryptor, "encrypt", by_offset)
    assert is_caught()


def test_simulation_catches_a_data_key_that_outlives_its_writer(
    code: Mutation,
) -> None:
    """The count of a segment begins again after a restart."""
    kept = CIPHER.new_aead()
    code.replace(SegmentCipher, "new_aead", lambda _: kept)
    assert is_caught()
