"""The source prometheus_remote_write, with messages written by hand from both specifications."""

import math
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.collector.limits import KIB, MIB
from penstock.specs.limits import BUCKETS_MAX
from tests.support.http_senders import serving
from tests.support.protobuf_bytes import encode

WRITE = "/api/v1/write"
TIME_MS = 1764268800_123
TIME_NS = TIME_MS * 10**6
HEAD_1 = {
    "content-type": "application/x-protobuf", "content-encoding": "snappy",
    "x-prometheus-remote-write-version": "0.1.0",
}  # fmt: skip
HEAD_2 = {
    "content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "content-encoding": "snappy", "x-prometheus-remote-write-version": "2.0.0",
}  # fmt: skip
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0002))[0]
TRACE = "0af7651916cd43dd8448eb211c80319c"
COUNTER, GAUGE, HISTOGRAM, SUMMARY = 1, 2, 3, 5

Message = dict[int, Any]


def packed(message: Message) -> bytes:
    data: bytes = pa.compress(encode(message), codec="snappy", asbytes=True)
    return data


def zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def labels_1(**labels: str) -> list[Message]:
    return [{1: name.replace("name__", "__name__"), 2: value} for name, value in labels.items()]


def series_1(name: str, *samples: tuple[float, int], **labels: str) -> Message:
    given = [{1: value, 2: time_ms} for value, time_ms in samples]
    return {1: labels_1(name__=name, **labels), 2: given}


def series_2(symbols: list[str], labels: dict[str, str], kind: int = 0, **more: Any) -> Message:
    """A series of 2.0; its texts are added to the symbols."""

    def ref(text: str) -> int:
        if text not in symbols:
            symbols.append(text)
        return symbols.index(text)

    made: Message = {1: [ref(text) for pair in labels.items() for text in pair]}
    made |= {2: more.get("samples", []), 3: more.get("histograms", [])}
    made[4] = more.get("exemplars", [])
    made[5] = {1: kind, 4: ref(more.get("unit", ""))}
    return made


def written(answer: Any) -> tuple[int, ...]:
    """What the answer says is written: samples, histograms, exemplars."""
    names = ("samples", "histograms", "exemplars")
    return tuple(int(answer.headers[f"x-prometheus-remote-write-{it}-written"]) for it in names)


async def test_samples_of_version_1_become_points(tmp_path: Path) -> None:
    request = {
        1: [
            series_1("orders_total", (1.0, TIME_MS), (2.0, TIME_MS + 1), job="shop", lane="7"),
            series_1("took_bucket", (3.0, TIME_MS), le="0.5"),
            series_1("heap_bytes", (4.5, TIME_MS)),
            series_1("load", (0.5, TIME_MS)),
        ],
        3: [{1: GAUGE, 2: "heap_bytes", 5: "bytes"}],
    }
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed(request), headers=HEAD_1)
        assert (answer.status_code, answer.content, written(answer)) == (204, b"", (5, 0, 0))
        first, second, bucket, heap, load = sender.records
        assert (first["name"], first["value"], first["is_monotonic"]) == ("orders_total", 1.0, True)
        assert (first["metric_type"], first["temporality"]) == ("sum", "cumulative")
        assert (first["time_unix_nano"], first["start_time_unix_nano"]) == (TIME_NS, TIME_NS)
        assert first["attributes"] == {"job": "shop", "lane": "7"}
        assert first["resource"]["service.name"] == "shop"
        assert (second["value"], second["time_unix_nano"]) == (2.0, TIME_NS + 10**6)
        assert (bucket["metric_type"], bucket["attributes"]) == ("sum", {"le": "0.5"})
        assert (heap["metric_type"], heap["unit"]) == ("gauge", "bytes")
        assert (load["metric_type"], load["unit"]) == ("gauge", "1")
        assert load["resource"]["service.name"] == "prometheus"
        assert sender.counted == {"types_unknown": 1}


async def test_samples_of_version_2_have_their_type_their_start_and_their_exemplars(
    tmp_path: Path,
) -> None:
    symbols = [""]
    trace = {1: [], 2: 9.5, 3: TIME_MS}
    series = series_2(
        symbols, {"__name__": "orders", "job": "shop"}, COUNTER, unit="order",
        samples=[{1: 7.0, 2: TIME_MS, 3: TIME_MS - 1000}], exemplars=[trace],
    )  # fmt: skip
    symbols += ["trace_id", TRACE, "kind", "card"]
    trace[1] = [symbols.index(text) for text in ("trace_id", TRACE, "kind", "card")]
    total = series_2(symbols, {"__name__": "took_sum"}, SUMMARY, samples=[{1: -1.0, 2: TIME_MS}])
    quantile = series_2(
        symbols, {"__name__": "took", "quantile": "0.5"}, SUMMARY, samples=[{1: 2.0, 2: TIME_MS}]
    )
    request = {4: symbols, 5: [series, total, quantile]}
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed(request), headers=HEAD_2)
        assert (answer.status_code, written(answer)) == (204, (3, 0, 1))
        first, second, third = sender.records
        assert (first["metric_type"], first["unit"], first["is_monotonic"]) == (
            "sum",
            "order",
            True,
        )
        assert first["start_time_unix_nano"] == TIME_NS - 10**9
        assert first["exemplars"] == [
            {"time_unix_nano": TIME_NS, "value": 9.5, "trace_id": TRACE,
             "attributes": {"kind": "card"}},
        ]  # fmt: skip
        assert (second["metric_type"], second["is_monotonic"]) == ("sum", False)
        assert (third["metric_type"], third["value"]) == ("gauge", 2.0)
        assert sender.counted == {}


def native(schema: int, **more: Any) -> Message:
    """A native histogram with 3 measurements in three buckets, and one in the bucket of zero."""
    spans = [{1: zigzag(-1), 2: 2}, {1: zigzag(3), 2: 1}]
    made = {
        1: 4, 3: 6.5, 4: zigzag(schema), 5: 0.001, 6: 1, 11: spans,
        12: [zigzag(delta) for delta in (1, 0, 0)], 15: TIME_MS,
    }  # fmt: skip
    return made | {int(number[1:]): value for number, value in more.items()}


async def test_a_native_histogram_becomes_an_exponential_one(tmp_path: Path) -> None:
    symbols = [""]
    series = series_2(symbols, {"__name__": "took"}, HISTOGRAM, histograms=[native(3)])
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed({4: symbols, 5: [series]}), headers=HEAD_2)
        assert (answer.status_code, written(answer)) == (204, (0, 1, 0))
        (point,) = sender.records
        assert point["metric_type"] == "exponential_histogram"
        assert (point["count"], point["sum"], point["scale"]) == (4, 6.5, 3)
        assert (point["zero_count"], point["zero_threshold"]) == (1, 0.001)
        # Prometheus's buckets -1, 0 and 4 end where OpenTelemetry's -2, -1 and 3 do.
        assert point["positive"] == {"offset": -2, "bucket_counts": [1, 1, 0, 0, 0, 1]}


async def test_a_wide_native_histogram_loses_resolution_and_no_count(tmp_path: Path) -> None:
    far = native(8, n11=[{1: zigzag(0), 2: 2}, {1: zigzag(1000), 2: 1}])
    series = {1: labels_1(name__="took"), 4: [far]}
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed({1: [series]}), headers=HEAD_1)
        assert (answer.status_code, written(answer)) == (204, (0, 1, 0))
        (point,) = sender.records
        counts = point["positive"]["bucket_counts"]
        assert (sum(counts), point["scale"]) == (3, 5)
        assert len(counts) <= BUCKETS_MAX
        base, offset = 2 ** (2**-5), point["positive"]["offset"]
        for prometheus in (0, 1, 1002):
            value = 2 ** (2**-8 * prometheus) * (1 - 1e-9)  # just below the end of its bucket
            index = next(i for i in range(len(counts)) if value <= base ** (offset + i + 1))
            assert counts[index] > 0


async def test_custom_buckets_become_a_histogram(tmp_path: Path) -> None:
    custom = native(-53, n1=3, n6=0, n11=[{1: zigzag(0), 2: 3}], n16=[0.5, 1.0])
    series = {1: labels_1(name__="took"), 4: [custom]}
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        assert (await sender.post(WRITE, packed({1: [series]}), headers=HEAD_1)).ok
        (point,) = sender.records
        assert point["metric_type"] == "histogram"
        assert (point["explicit_bounds"], point["bucket_counts"]) == ([0.5, 1.0], [1, 1, 1])


async def test_the_end_of_a_series_is_a_point_without_a_value(tmp_path: Path) -> None:
    ended = {1: labels_1(name__="took"), 4: [native(3, n3=STALE)]}
    request = {
        1: [series_1("a_total", (STALE, TIME_MS)), series_1("b", (math.nan, TIME_MS)), ended]
    }
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed(request), headers=HEAD_1)
        assert (answer.status_code, written(answer)) == (204, (2, 1, 0))
        found = [(one["metric_type"], one.get("flags"), one.get("value")) for one in sender.records]
        assert found == [
            ("sum", 1, None), ("gauge", None, "NaN"), ("exponential_histogram", 1, None),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "refused", "reason"),
    [
        (series_1("", (1.0, TIME_MS)), 1, "a series without a name"),
        (series_1("b", (1.0, TIME_MS), **{"": "c"}), 1, "b: a label without a name, or twice"),
        (series_1("b", (1.0, -5), (2.0, TIME_MS)), 1, "b: a time that is none"),
        ({1: labels_1(name__="b"), 4: [native(9)]}, 1, "b: the schema 9"),
        ({1: labels_1(name__="b"), 4: [native(3, n12=[])]}, 1, "b: buckets that do not fit"),
        ({1: labels_1(name__="b"), 4: [native(3, n1=2)]}, 1, "in quarantine: "),
        ({1: labels_1(name__="b"), 4: [native(3, n1=2**63)]}, 1, "b: counts beyond 64 bits"),
        (series_1("b_total", (-1.0, TIME_MS)), 1, "in quarantine: "),
    ],
)
async def test_of_a_request_with_bad_samples_the_others_are_kept(
    tmp_path: Path, bad: Message, refused: int, reason: str
) -> None:
    request = {1: [series_1("a", (1.0, TIME_MS)), bad, series_1("c", (3.0, TIME_MS))]}
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed(request), headers=HEAD_1)
        assert answer.status_code == 400
        assert answer.text.startswith(f"{refused} of ")
        assert reason in answer.text
        assert {"a", "c"} <= {one["name"] for one in sender.records}
        quarantined = "quarantine" in reason
        assert sum(written(answer)) == len(sender.records) - quarantined
        assert sender.counted.get("samples_refused", 0) == refused - quarantined


async def test_a_series_of_version_2_has_samples_or_histograms(tmp_path: Path) -> None:
    symbols = [""]
    both = {"samples": [{1: 1.0, 2: TIME_MS}], "histograms": [native(3)]}
    series = series_2(symbols, {"__name__": "a"}, GAUGE, **both)
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed({4: symbols, 5: [series]}), headers=HEAD_2)
        assert (answer.status_code, written(answer)) == (400, (0, 0, 0))
        assert answer.text.startswith("2 of 2 ")
        assert sender.records == []


async def test_exemplars_stand_with_the_samples_of_their_series(tmp_path: Path) -> None:
    """Prometheus sends them as series of their own."""
    exemplars = [{1: [], 2: float(number), 3: TIME_MS + number} for number in range(6)]
    alone = {1: labels_1(name__="a"), 3: exemplars}
    lost = {1: labels_1(name__="b"), 3: exemplars[:2]}
    request = {1: [series_1("a", (1.0, TIME_MS)), alone, lost]}
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, packed(request), headers=HEAD_1)
        assert (answer.status_code, written(answer)) == (204, (1, 0, 4))
        (point,) = sender.records
        assert [one["value"] for one in point["exemplars"]] == [2.0, 3.0, 4.0, 5.0]
        assert sender.counted["exemplars_dropped"] == 4


@pytest.mark.parametrize(
    ("head", "data", "status", "message"),
    [
        (HEAD_1, b"no snappy", 400, "not snappy"),
        (HEAD_1, packed({1: "x"}), 400, "not a protobuf WriteRequest"),
        (HEAD_2, packed({4: [""], 5: [{1: [0, 7]}]}), 400, "a symbol that is not there"),
        (HEAD_2, packed({4: [""], 5: [{1: [0]}]}), 400, "an odd number of labels_refs"),
        (HEAD_1, packed({1: "x" * (5 * MIB)}), 413, "after decompression"),
        (HEAD_1 | {"content-encoding": "identity"}, b"", 415, "is not snappy"),
        (HEAD_1 | {"content-type": "application/json"}, b"", 415, "the content type is not"),
        (HEAD_1 | {"content-type": "application/x-protobuf;proto=x"}, b"", 415, "proto="),
    ],
)
async def test_refusals_are_text_and_nothing_is_kept(
    tmp_path: Path, head: dict[str, str], data: bytes, status: int, message: str
) -> None:
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        answer = await sender.post(WRITE, data, headers=head)
        assert (answer.status_code, written(answer)) == (status, (0, 0, 0))
        assert message in answer.text
        assert sender.records == []


async def test_a_request_with_nothing_but_metadata_is_taken(tmp_path: Path) -> None:
    head = {name: value for name, value in HEAD_1.items() if name != "content-encoding"}
    async with serving(tmp_path, "prometheus_remote_write", path="/push") as sender:
        request = packed({3: [{1: COUNTER, 2: "a"}]})
        assert (await sender.post("/push", request, headers=head)).status_code == 204
        assert (await sender.post(WRITE, request, headers=head)).status_code == 404
        assert sender.records == []
        assert sender.counted == {"metadata_dropped": 1}


async def test_help_texts_are_counted(tmp_path: Path) -> None:
    series = series_1("a_total", (1.0, TIME_MS))
    first = packed({1: [series], 3: [{1: COUNTER, 2: "a", 4: "Help."}, {1: COUNTER, 2: "b"}]})
    symbols = ["", "Help."]
    one = series_2(symbols, {"__name__": "a"}, COUNTER, samples=[{1: 1.0, 2: TIME_MS}])
    one[5] |= {3: 1}
    second = packed({4: symbols, 5: [one]})
    async with serving(tmp_path, "prometheus_remote_write") as sender:
        for request, head in (first, HEAD_1), (second, HEAD_2):
            assert (await sender.post(WRITE, request, headers=head)).status_code == 204
        assert sender.counted == {"help_texts_dropped": 2}


async def test_a_full_spool_and_too_much_at_once_are_to_be_sent_again(tmp_path: Path) -> None:
    spool = {"drop_newest": True, "spool_bytes": 64 * KIB, "share_bytes": 64 * KIB}
    async with serving(tmp_path, "prometheus_remote_write", spool=spool) as sender:
        request = packed({1: [series_1("a", (1.0, TIME_MS), text="x" * 20_000)]})
        while (answer := await sender.post(WRITE, request, headers=HEAD_1)).ok:
            pass
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        request = packed({1: [series_1("a", (1.0, TIME_MS), text="x" * 70_000)]})
        answer = await sender.post(WRITE, request, headers=HEAD_1)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
