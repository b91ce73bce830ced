"""v. Where the time of one line goes, from a file to the message that is published.

The collector's own parts, one after the other, as a file's lines take them, on the JSON lines of p
and on lines of eleven formats; what each takes of the processor, in microseconds a line, in this
process. Nothing waits and nothing is sent: reading the disk, the
event loop, NATS and the checkpoint come besides, and are in p.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from time import process_time_ns
from typing import Any, Final

from penstock.collector.agent.derived_config import limits_of
from penstock.collector.decode.lines import LineContext, PlainLines, decode_line
from penstock.collector.delivery.core import Delivery, Event, Flush, Publish, Stored, Take
from penstock.collector.delivery.ordered_queue import QueueKey
from penstock.collector.delivery.publisher import encode_lines
from penstock.collector.limits import FILE_READ_BYTES, LINE_BYTES_MAX
from penstock.collector.sources.line_framing import Line, LineCutter, TextLines
from penstock.collector.transforms.graph.graph import Chunk, Graph
from penstock.logd.format.batch import SCHEMA_VERSION
from penstock.logd.format.envelope import BatchPayload, encode_batch
from penstock.specs.validate.verdict import Verdicts
from tests.bench.collecting import file_lines
from tests.bench.figures import Case
from tests.bench.harness import Bench
from tests.bench.log_formats import lines_of_all
from tests.support.collector_graph import config_of, graph_of

TITLE: Final = "where the time of one line of a file goes"
_NOW_NS: Final = 1_767_000_000_000_000_000
_CONTEXT: Final = LineContext(
    {"service.name": "shop", "host.name": "host-1"},
    {"log.file.path": "/var/log/shop/app.log", "log.file.name": "app.log"},
)
_READ_LINES: Final = 500
_READ_EVERY_NS: Final = 200_000_000
STAGES: Final = ("cut", "decode", "validate", "search", "queue", "encode", "envelope")


def run(bench: Bench) -> Iterator[Case]:
    """One round is all stages, each on what the one before made."""
    count = bench.pick(100_000, 40_000, 2_000)
    inputs = {"JSON": file_lines, "of eleven formats": lines_of_all}
    for what, make in inputs.items():
        data = b"".join(make(count))
        case = Case("v", f"one line, {what}, by stage", "µs", better="lower")
        for _, counts in bench.turns(f"v, stages, {what}", ("stages",)):
            for stage, microseconds in measure(data, count).items():
                if counts:
                    case.add(stage, microseconds)
        case.notes = {
            "decode": "a line as a record, with its shape's verdict",
            "validate": "what has none yet, and put in its batch",
            "search": "for sensitive values",
            "encode": "Arrow, zstd",
        }
        yield case


def measure(data: bytes, count: int) -> dict[str, float]:
    """Microseconds a line, by stage, and their sum."""
    way, rest = _Way(), 0
    for at in range(0, len(data), FILE_READ_BYTES):
        rest += way.take(data[at : at + FILE_READ_BYTES])
    way.take_rest()
    assert way.published == rest == count
    took = {stage: way.took_ns[stage] / count / 1000 for stage in STAGES}
    took["search"] = max(0.0, took["search"] - took["validate"])  # which it does, too
    return {**took, "all": sum(took.values())}


def records_of_lines(count: int) -> Iterator[bytes]:
    """Records as a source of files makes them of lines of eleven formats."""
    lines, now_ns = lines_of_all(count), _NOW_NS
    while read := list(islice(lines, _READ_LINES)):
        plain = PlainLines(_CONTEXT, now_ns)
        for text in (line[:-1] for line in read):
            made = plain.make(text)
            yield made[0] if made else decode_line(text, _CONTEXT, now_ns, truncated=False)[0]
        now_ns += _READ_EVERY_NS


class _Way:
    """What is read at a time goes all the way, as in the collector."""

    def __init__(self) -> None:
        self.took_ns: Counter[str] = Counter()
        self.published = 0
        self._cutter = LineCutter(LINE_BYTES_MAX)
        self._validating = graph_of({"sensitive": {"enabled": False}})
        self._graph = graph_of({})
        self._core = Delivery(limits_of(config_of({})), jitter=lambda: 0.5)

    def take(self, data: bytes) -> int:
        """How many lines there were in it."""
        cut = self._timed("cut", lambda: self._cutter.feed(data))
        made = self._timed("decode", lambda: _decode(cut))
        ends = [line.end for line in cut]
        self._timed("validate", lambda: _sort(self._validating, made, ends))
        takes = self._timed("search", lambda: _sort(self._graph, made, ends))
        for take in takes:
            self._publish(take)
        return len(cut)

    def take_rest(self) -> None:
        """What waits for more."""
        self._publish(Flush())

    def _publish(self, event: Event) -> None:
        """The measuring code acknowledges each batch at once."""
        effects = self._timed("queue", lambda: self._core.handle(event, 0))
        for effect in effects:
            assert isinstance(effect, Publish)
            body = self._timed("encode", partial(encode_lines, effect.queue.subject, effect.batch))
            self._timed("envelope", partial(_enveloped, effect, body))
            self.published += len(effect.batch)
            self._publish(Stored(effect.request))

    def _timed(self, stage: str, work: Callable[[], Any]) -> Any:
        begun_ns = process_time_ns()
        done = work()
        self.took_ns[stage] += process_time_ns() - begun_ns
        return done


def _decode(cut: Sequence[Line]) -> tuple[list[bytes], Verdicts]:
    assert isinstance(cut, TextLines)
    made, verdicts, _ = PlainLines(_CONTEXT, _NOW_NS).make_together(cut.texts)
    if all(made):
        return [*filter(None, made)], verdicts
    return [one or _decode_alone(line) for one, line in zip(made, cut, strict=True)], verdicts


def _decode_alone(line: Line) -> bytes:
    return decode_line(line.text, _CONTEXT, _NOW_NS, truncated=line.truncated)[0]


def _sort(graph: Graph, made: tuple[list[bytes], Verdicts], sequences: list[int]) -> list[Take]:
    lines, verdicts = made
    outcome = graph.process(Chunk("app", 0, sequences, lines, b"", _NOW_NS, verdicts), 0)
    assert not outcome.refused
    return [
        Take(QueueKey("file/1", "app", subject, branch), batch)
        for (subject, branch), batch in outcome.batches.items()
    ]


def _enveloped(effect: Publish, body: bytes) -> bytes:
    return encode_batch(
        BatchPayload(
            schema_version=SCHEMA_VERSION,
            record_count=len(effect.batch),
            producer_id=b"p" * 16,
            previous_sequence=effect.previous,
            sequence=effect.batch.last,
            body=body,
        )
    )
