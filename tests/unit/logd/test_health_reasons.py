"""Why logd says that partitions are not well."""

from types import SimpleNamespace
from typing import Any

from penstock.logd.telemetry import partition_reasons

NOW_NS = 1_000
DAMAGE = "3 offsets cannot be read: damaged from offset {} on; see: penstock logd gaps"


def _partition(
    name: str,
    number: int = 0,
    *,
    failure: str = "",
    damaged: tuple[tuple[int, int], ...] = (),
    lost_until_ns: int = 0,
) -> Any:
    return SimpleNamespace(
        name=name,
        number=number,
        label=f"{name}/{number}" if number else name,
        failure=failure,
        start_offset=2,
        log=SimpleNamespace(damages=SimpleNamespace(ranges=damaged), damaged=lambda: list(damaged)),
        intake=SimpleNamespace(dedup=SimpleNamespace(lost=7, lost_until_ns=lost_until_ns)),
    )


def test_partitions_that_are_well_have_no_reasons() -> None:
    well = [_partition("logs"), _partition("logs", 1, lost_until_ns=NOW_NS)]
    assert list(partition_reasons(well, NOW_NS)) == []


def test_the_reasons_of_partitions_come_by_stream_and_number() -> None:
    partitions = [
        _partition("spans", failure="sync failed"),
        _partition("logs", 10, failure="append failed", damaged=((0, 4), (9, 10))),
        _partition("events", damaged=((0, 2), (5, 8))),
        _partition("audit", damaged=((0, 2),)),
        _partition("metrics"),
        _partition("logs", 2, lost_until_ns=NOW_NS + 1),
    ]
    assert list(partition_reasons(partitions, NOW_NS)) == [
        f"stream events: {DAMAGE.format(5)}",
        "stream logs/2: its dedup state below offset 7 is lost; repeats may be stored again",
        "stream logs/10: append failed",
        f"stream logs/10: {DAMAGE.format(2)}",
        "stream spans: sync failed",
    ]
