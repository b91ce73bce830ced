"""What loggers were told: sampled by trace, folded when it repeats, never lost for being odd."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from typing_extensions import override

from penstock.specs.emit.log_writer import REPEATED, LogLines, LogWriter
from penstock.specs.emit.sampling import WINDOW_NS, Folder, Sampler, Step
from penstock.specs.emit.system_metrics import MachineFacts

TRACES = st.integers(1, (1 << 128) - 1).map(lambda number: f"{number:032x}")


class Sink:
    """Keeps records, and counts what is lost."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.lost: dict[str, int] = {}

    def emit(self, kind: str, line: bytes, severity_number: int = 9) -> bool:
        assert kind == "log"
        self.records.append(json.loads(line))
        return True

    def record_drop(self, kind: str, reason: str, count: int = 1) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + count


@pytest.fixture
def sink() -> Sink:
    return Sink()


@given(TRACES, st.floats(0.01, 1), st.floats(0.01, 1))
def test_whoever_keeps_more_keeps_what_others_keep(trace: str, one: float, other: float) -> None:
    less, more = sorted((one, other))
    if Sampler(less).keeps(trace):
        assert Sampler(more).keeps(trace)


@given(TRACES)
def test_all_traces_are_kept_at_one(trace: str) -> None:
    assert Sampler(1).keeps(trace)
    assert Sampler(1).weight == 1


def test_a_share_is_kept_by_the_last_digits_of_the_id() -> None:
    kept = [Sampler(0.25).keeps(f"{number:018x}{number << 48:014x}") for number in range(256)]
    assert kept == [number >= 192 for number in range(256)]


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_is_above_zero_and_at_most_one(share: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Sampler(share)


def test_logs_of_a_trace_stay_or_go_and_errors_stay(sink: Sink) -> None:
    writer = LogWriter(sink, LogLines(), Sampler(0.5))
    tracer = TracerProvider().get_tracer("t")
    for _ in range(40):
        with tracer.start_as_current_span("work"):
            writer.write("a", 9, {})
            writer.write("b", 13, {})
            writer.write("c", 17, {})
    kept: dict[str, set[str]] = {}
    for record in sink.records:
        kept.setdefault(record["trace_id"], set()).add(record["body"])
        assert record.get("sample_weight") == (None if record["body"] == "c" else 2)
    assert {frozenset(bodies) for bodies in kept.values()} == {
        frozenset("abc"), frozenset("c"),
    }  # fmt: skip
    assert len(sink.records) + sink.lost["sampled"] == 120


def test_what_belongs_to_no_trace_is_kept(sink: Sink) -> None:
    LogWriter(sink, LogLines(), Sampler(0.01)).write("a", 9, {})
    assert "sample_weight" not in sink.records[0]


def say(writer: LogWriter, at_ns: int, body: str = "failed", **fields: Any) -> None:
    writer.write(body, 13, fields, time_unix_nano=at_ns)


def test_repeats_become_one_with_a_count(sink: Sink) -> None:
    writer = LogWriter(sink, LogLines(), folder=Folder(3))
    for number in range(100):
        say(writer, 1000 + number, host="a")
    assert len(sink.records) == 4
    say(writer, 1000 + WINDOW_NS, "other")
    folded, other = sink.records[4:]
    assert folded["attributes"] == {"host": "a", REPEATED: 96}
    assert folded["time_unix_nano"] == 1099
    assert other["body"] == "other"
    assert sink.lost == {"repeated": 95}


def test_a_frequent_message_with_other_attributes_each_time_is_not_folded(sink: Sink) -> None:
    writer = LogWriter(sink, LogLines(), folder=Folder(3))
    for number in range(100):
        say(writer, 1000, order=number)
    assert [record["attributes"]["order"] for record in sink.records] == list(range(100))


def test_what_was_folded_is_said_when_asked_for(sink: Sink) -> None:
    writer = LogWriter(sink, LogLines(), folder=Folder(1))
    for _ in range(5):
        writer.write("failed", 13, {})
    assert writer.release()
    assert not writer.release(everything=True)
    assert [record.get("attributes") for record in sink.records] == [None, None, {REPEATED: 3}]


def test_what_was_folded_and_cannot_be_encoded_is_counted(sink: Sink) -> None:
    def encode(record: dict[str, Any]) -> bytes:
        if REPEATED in record.get("attributes", {}):
            raise OverflowError
        return json.dumps(record).encode()

    writer = LogWriter(sink, LogLines(), folder=Folder(2), encode=encode)
    for number in range(10):
        say(writer, number)
    writer.release(everything=True)
    assert sink.lost.get("not_encodable", 0) > 0
    assert len(sink.records) + sink.lost["not_encodable"] == 10


def test_a_clock_that_is_set_back_begins_a_window(sink: Sink) -> None:
    writer = LogWriter(sink, LogLines(), folder=Folder(1))
    for at in (10 * WINDOW_NS, 10 * WINDOW_NS, 10 * WINDOW_NS, 5):
        say(writer, at)
    assert [record["time_unix_nano"] for record in sink.records] == [
        10 * WINDOW_NS, 10 * WINDOW_NS, 10 * WINDOW_NS, 5,
    ]  # fmt: skip
    assert sink.records[2]["attributes"] == {REPEATED: 1}


STEPS = st.lists(st.tuples(st.integers(0, 400), st.sampled_from("ab"), st.integers(0, 2)))


@given(STEPS, st.integers(1, 4))
def test_folding_loses_no_record_uncounted(
    steps: list[tuple[int, str, int]], max_repeats: int
) -> None:
    folder, now, out, counted = Folder(max_repeats, window_ns=1000), 1, 0, 0
    for wait, text, key in steps:
        now += wait
        step = folder.classify(text, now)
        if step is Step.ROLL:
            counted += sum(folded.times for folded in folder.due(now))
            step = folder.classify(text, now)
        assert step is not Step.ROLL
        if step is Step.PASS or not folder.swallow(text, (text, key), None):
            out += 1
    assert out + counted + sum(folded.times for folded in folder.due(now)) == len(steps)
    assert not folder.is_holding


def test_what_breaks_whoever_looks_at_it_goes_out_sanitised(sink: Sink) -> None:
    class Hostile(dict[str, Any]):
        @override
        def __iter__(self) -> Any:
            raise RuntimeError("no")

    LogWriter(sink, LogLines()).write("x", 9, Hostile(a=object()))
    assert sink.records[0]["body"] == "x"
    assert sink.records[0]["attributes"] == {"penstock.sanitised": "RuntimeError"}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "uptime").write_text("100.0 50.0\n")
    (tmp_path / "self" / "statm").write_text("9 7 1 1 0 1 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 25 kB\n")
    return tmp_path


def test_the_machine_is_looked_at_once_a_second(proc: Path, sink: Sink) -> None:
    writer = LogWriter(sink, LogLines(facts=MachineFacts(proc)))
    second = 1_000_000_000
    say(writer, second)
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable: 50 kB\n")
    say(writer, 2 * second - 1)
    say(writer, 2 * second)
    found = [record["attributes"]["system.memory.utilization"] for record in sink.records]
    assert found == [0.75, 0.75, 0.5]


def test_what_the_machine_does_not_say_is_left_out(tmp_path: Path, sink: Sink) -> None:
    LogWriter(sink, LogLines(facts=MachineFacts(tmp_path))).write("a", 9, {"b": 1})
    assert sink.records[0]["attributes"] == {"b": 1}


def test_utilization_is_a_share_of_all_processors(proc: Path) -> None:
    facts = MachineFacts(proc, processors=2)
    assert "system.cpu.utilization" not in facts.at(10**9)
    (proc / "uptime").write_text("110.0 55.0\n")
    assert facts.at(3 * 10**9)["system.cpu.utilization"] == 0.75
