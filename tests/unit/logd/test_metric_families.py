"""What a scrape gets of logd: metrics as the Prometheus client makes them, and which streams."""

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.logd.cluster.engine import under_replicated
from penstock.logd.format.acks import Nack
from penstock.logd.metadata.records import PartitionKey
from penstock.logd.metrics import METRICS, PREFIX, family, labeled_family, value_of
from penstock.logd.telemetry import most_telling


def _by_the_client(name: str, *samples: tuple[tuple[str, ...], float]) -> Metric:
    """The same metric as the client's own methods make it."""
    declared = METRICS[name]
    kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    metric = kind(PREFIX + name, declared.help, labels=declared.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


@pytest.mark.parametrize("name", ["records_received", "high_watermark"])
def test_a_metric_is_what_the_client_makes_of_it(name: str) -> None:
    samples = [(("logs",), 7), (('a"b',), 0)]
    expected = _by_the_client(name, *samples)
    assert family(name, samples) == expected
    assert labeled_family(name, [({"stream": at}, value) for (at,), value in samples]) == expected


def test_a_metric_has_a_label_for_each_of_its_names_or_none() -> None:
    found = family("records_refused", [(("logs", "busy"), 2)])
    assert found == _by_the_client("records_refused", (("logs", "busy"), 2))
    assert value_of("acks_sent", 3) == _by_the_client("acks_sent", ((), 3))
    with pytest.raises(ValueError, match="shorter"):
        family("records_refused", [(("logs",), 2)])


@dataclass(eq=False)
class _Partition:
    failure: str
    start_offset: int
    log: SimpleNamespace
    intake: SimpleNamespace
    publish_queue: SimpleNamespace
    compaction_scheduler: SimpleNamespace


def _partition(
    received: int = 0,
    *,
    failure: str = "",
    refused: int | None = None,
    lost: int = 0,
    lost_until_ns: int = 0,
    compaction_failures: int = 0,
    damaged: tuple[tuple[int, int], ...] = (),
) -> Any:
    counts = SimpleNamespace(
        received=received, refused=Counter({} if refused is None else {Nack.BUSY: refused})
    )
    dedup = SimpleNamespace(lost_until_ns=lost_until_ns)
    return _Partition(
        failure=failure,
        start_offset=2,
        log=SimpleNamespace(damages=SimpleNamespace(ranges=damaged), damaged=lambda: list(damaged)),
        intake=SimpleNamespace(counts=counts, dedup=dedup),
        publish_queue=SimpleNamespace(lost=lost),
        compaction_scheduler=SimpleNamespace(counts=SimpleNamespace(failures=compaction_failures)),
    )


def test_the_partitions_in_trouble_are_chosen_first_and_stay_in_their_order() -> None:
    partitions = [
        _partition(9),
        _partition(failure="sync failed"),
        _partition(refused=1),
        _partition(8, refused=0),
        _partition(lost=1),
        _partition(8, damaged=((0, 2),)),  # all of it is deleted
        _partition(lost_until_ns=1),
        _partition(compaction_failures=1),
        _partition(damaged=((0, 3),)),
        _partition(),
    ]
    in_trouble = [partitions[at] for at in (1, 2, 4, 6, 7, 8, 9)]
    assert most_telling(partitions, {partitions[9]}, 7) == in_trouble
    assert most_telling(partitions, {partitions[9]}, 8) == [partitions[0], *in_trouble]


def test_of_those_that_are_well_the_busiest_are_chosen_and_of_like_ones_the_first() -> None:
    partitions = [_partition(received) for received in (0, 3, 1, 1, 2)]
    assert most_telling(partitions, set(), 3) == [partitions[at] for at in (1, 2, 4)]
    assert most_telling(partitions, set(), 0) == []


def test_a_partition_is_under_replicated_while_a_replica_is_not_in_sync() -> None:
    isrs = {"whole": ("a", "b"), "short": ("a",)}
    known = {
        PartitionKey(name, 0): (None, SimpleNamespace(replicas=("a", "b"), isr=isr))
        for name, isr in isrs.items()
    }
    replicas: Any = [
        SimpleNamespace(place=PartitionKey(name, 0), partition=name) for name in (*isrs, "deleted")
    ]
    state: Any = SimpleNamespace(partition=known.get)
    assert list(map(str, under_replicated(replicas, state))) == ["short"]
