"""A sink of requests before a server that records them: rows in, requests and a result out.

    with RecordedSink("loki", tmp_path) as sink:
        outcome = sink.write([log_record(0)])
        (body,) = outcome.bodies

A test says what the server answers first; from then on it takes everything, as that product does.
A sink that would wait, for the server is busy or refuses the sender, waits `patience` times, and no
longer than the call takes; then the outcome has its problem. So nobody needs to look into a sink.
"""

import gzip
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson
import pyarrow as pa
import zstandard
from typing_extensions import override

from penstock.base.clock import SystemClock
from penstock.router.errors import StoppedError
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.sinks.http.request_sink import RequestSink
from penstock.router.sinks.registry import sink_kind
from tests.support.fault_door import GONE, Answered, Asked, Backend, Fault, FaultDoor, says
from tests.support.sink_batches import batch, context, dead_letters

Answer = Fault | tuple[int, bytes] | int
"""What the server answers once: a fault of the door, or a status, with a body or without one."""


def resets(asked: Asked, backend: Backend) -> None:
    """An answer: none, for the connection is reset."""


def closes(asked: Asked, backend: Backend) -> Answered:
    """An answer: none, for the connection is closed, as one that was idle for long."""
    return GONE


def _always(status: int, body: bytes = b"") -> Callable[[Asked], Answered]:
    return lambda asked: Answered(status, body)


def _items(asked: Asked) -> Answered:
    """Elasticsearch names the fate of each document."""
    taken = {"create": {"status": 201}}
    count = len(plain(asked).splitlines()) // 2
    return Answered(200, orjson.dumps({"errors": False, "items": [taken] * count}))


def _of_datadog(asked: Asked) -> Answered:
    if asked.path.endswith("/traces"):
        return Answered(200, b'{"rate_by_service":{}}')
    return Answered(202, b'{"errors":[]}' if asked.path.endswith("/series") else b"{}")


def _of_clickhouse(asked: Asked) -> Answered:
    keys = b"ReplacingMergeTree\tstream, incarnation, partition, offset\n"
    return Answered(200, keys if plain(asked).startswith(b"SELECT") else b"")


_TAKES: Final[dict[str, Callable[[Asked], Answered]]] = {
    "clickhouse": _of_clickhouse,
    "datadog": _of_datadog,
    "elasticsearch": _items,
    "loki": _always(204),
    "splunk_hec": _always(200, b'{"text":"Success","code":0}'),
}
"""What each product answers to a request of which it takes everything; others say 200."""


class _Taking(Backend):
    def __init__(self, kind: str) -> None:
        self._takes = _TAKES.get(kind, _always(200))

    @override
    def handle(self, asked: Asked) -> Answered:
        return self._takes(asked)


class SkippingClock(SystemClock):
    """The time of day, which jumps over what a sink waits for."""

    def __init__(self) -> None:
        self._skipped_ns = 0

    def skip(self, seconds: float) -> None:
        """Let time pass at once."""
        self._skipped_ns += int(seconds * 1e9)

    @override
    def unix_ns(self) -> int:
        return super().unix_ns() + self._skipped_ns

    @override
    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self._skipped_ns


class _Patience(threading.Event):
    """Set when the code under test has waited `left` times; until then time is skipped."""

    def __init__(self, clock: SkippingClock) -> None:
        super().__init__()
        self._clock = clock
        self.left = 0

    @override
    def wait(self, timeout: float | None = None) -> bool:
        self._clock.skip(timeout or 0.0)
        self.left -= 1
        return self.left < 0 or self.is_set()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch.

    Attributes:
        requests: What the server was asked, in order.
        dead_letters: Dead letters that the sink has laid aside since it was made, by offset.
        counted: The sink's counters.
        problem: Why the sink waits, where it gave up waiting; None: the batch is done.
        circuit: The state of its circuit breaker.
    """

    requests: tuple[Asked, ...]
    dead_letters: list[dict[str, Any]]
    counted: dict[str, int]
    problem: str | None
    circuit: str

    @property
    def bodies(self) -> list[bytes]:
        """What was sent, as it was before it was compressed."""
        return [plain(asked) for asked in self.requests]

    @property
    def codes(self) -> list[str]:
        """Why each dead letter is one."""
        return [dead_letter["code"] for dead_letter in self.dead_letters]


def plain(asked: Asked) -> bytes:
    """A request's body without its gzip or zstd."""
    match asked.headers.get("content-encoding"):
        case "gzip":
            return gzip.decompress(asked.body)
        case "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(asked.body)
        case _:
            return asked.body


class RecordedSink:
    """One sink, open, and the server that it sends to.

    Args:
        kind: The sink's type.
        directory: For its state and dead letters.
        path: Of its URL.
        urls: Further settings that are the server's address as well, with the path of each.
        within: Its context, where a test makes one; clock and stop become those of the recording.
        keys: Further settings.

    Attributes:
        door: The server.
        context: What the sink counts and keeps.
    """

    def __init__(
        self,
        kind: str,
        directory: Path,
        *,
        path: str = "",
        urls: dict[str, str] | None = None,
        within: SinkContext | None = None,
        **keys: Any,
    ) -> None:
        self.door = FaultDoor(_Taking(kind))
        self._clock = SkippingClock()
        self._patience = _Patience(self._clock)
        made = within or context(directory)
        self.context = replace(made, clock=self._clock, stop=self._patience)
        addresses = {name: self.door.url + its for name, its in (urls or {}).items()}
        settings = {"type": kind, "url": self.door.url + path, **addresses, **keys}
        sink = make_sink(sink_kind(kind).config.model_validate(settings), self.context)
        assert isinstance(sink, RequestSink)
        self.sink: Any = sink
        self.sink.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sink.close()
        self.door.close()

    def write(
        self,
        records: pa.Table | Sequence[dict[str, Any] | bytes],
        *answers: Answer,
        patience: int | None = None,
    ) -> Outcome:
        """Bring one batch.

        Args:
            records: Rows, or records from offset 0 on.
            answers: To the first requests, one each.
            patience: How often the sink may wait before it is stopped; as often as there are
                answers, if it is not said.
        """
        self._patience.left = len(answers) if patience is None else patience
        self.door.faults.extend(map(_fault, answers))
        begin = len(self.door.asked)
        problem = None
        try:
            self.sink.write(records if isinstance(records, pa.Table) else batch(records))
        except StoppedError:
            problem = self.context.meter.problem or "it waits, and does not say for what"
        self.door.faults.clear()
        return Outcome(
            tuple(self.door.asked[begin:]),
            dead_letters(self.context),
            dict(self.context.meter.counted()),
            problem,
            self.context.meter.circuit.state,
        )


def _fault(answer: Answer) -> Fault:
    match answer:
        case int():
            return says(answer)
        case (int() as status, bytes() as body):
            return says(status, body)
        case _:
            assert callable(answer)
            return answer


def sent(
    kind: str,
    directory: Path,
    records: pa.Table | Sequence[dict[str, Any] | bytes],
    **how: Any,
) -> Outcome:
    """What a sink sends of records to a server that takes everything, and what it lays aside."""
    with RecordedSink(kind, directory, **how) as sink:
        return sink.write(records)
