"""Intake, its memory and the commit log over a disk that fails: see `intake_world`."""

import os
from typing import Any

import pytest

from penstock.logd.format.batch import decode_body
from penstock.logd.intake.dedup import Dedup
from penstock.logd.intake.intake import Intake
from penstock.logd.intake.options import stored_message_id
from penstock.logd.partition.producer_snapshot import ProducerSnapshot
from penstock.logd.partition.rebuild import rebuild_intake
from penstock.logd.storage import CommitLog
from tests.sim.intake_world import IntakeWorld, with_options
from tests.sim.twins import Mutation

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "300"))
FIRST_SEED = int(os.environ.get("PENSTOCK_SIM_SEED", "0"))
BLOCKS = 10


def run(seed: int, **twin: Any) -> IntakeWorld:
    world = IntakeWorld(seed, **twin)
    world.run(70)
    return world


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_schedule_keeps_what_was_acked_and_stores_it_once(block: int) -> None:
    for seed in range(FIRST_SEED + block, FIRST_SEED + SEEDS, BLOCKS):
        try:
            run(seed)
        except AssertionError as error:
            pytest.fail(f"make sim SEED={seed}: {error}")


def test_the_schedules_reach_the_rare_cases() -> None:
    reached: set[str] = set()
    for seed in range(60):
        reached |= run(seed).reached
    assert {
        "deleted",
        "disk failed",
        "duplicate",
        "duplicate batch",
        "ids evicted",
        "power lost with something unsynced",
        "producers evicted",
        "refused Nack.SEQUENCE_GAP",
        "refused Nack.STORAGE_FAILED",
        "refused Nack.UNKNOWN_PRODUCER",
    } <= reached


def _forget(intake: Intake, log: CommitLog, now_ns: int) -> None:
    """Memory is not rebuilt."""


def _from_the_log_only(intake: Intake, log: CommitLog, now_ns: int) -> None:
    """What outlived its records is not read."""
    ProducerSnapshot(0, ([], []), ([], []), b"", whole=False).save(log.directory, disk=log.disk)
    rebuild_intake(intake, log, now_ns)


def _by_frame_time(intake: Intake, log: CommitLog, now_ns: int) -> None:
    """Ids count from the youngest record of their frame."""

    def recall_ids(self: Dedup, header: Any, body: bytes, now_ns: int) -> None:
        headers = decode_body(body).column("headers")
        pairs = [] if header.producer_sequence else headers.to_pylist()
        for delta, some in enumerate(pairs):
            message_id = stored_message_id(some or ())
            if message_id is not None:
                offset = header.base_offset + delta
                self.message_ids.record(message_id, offset, header.max_timestamp_ns)

    with Mutation() as code:
        code.replace(Dedup, "recall_ids", recall_ids)
        rebuild_intake(intake, log, now_ns)


TWINS: dict[str, dict[str, Any]] = {
    "acks early": {"early": True},
    "forgets": {"rebuild": _forget},
    "reads the log only": {"rebuild": _from_the_log_only},
    "takes the frame's time": {"rebuild": _by_frame_time},
    "window too long": {"config": with_options(dedup_window_s=7)},
    "window too short": {"config": with_options(dedup_window_s=5)},
    "an id too many": {"config": with_options(max_dedup_entries=7)},
    "a producer too many": {"config": with_options(max_producers=3)},
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_known_bad_twin_is_caught(twin: str) -> None:
    for seed in range(200):
        try:
            run(seed, **TWINS[twin])
        except AssertionError:
            return
    pytest.fail("not caught in 200 seeds")
