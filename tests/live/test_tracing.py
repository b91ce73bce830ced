"""All parts trace all they do, and send their spans through one another: no loop."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.service.tracing import span_of
from tests.support.collector import Collector, UnixSender, log_line
from tests.support.logd import Logd
from tests.support.processes import Daemon, free_port
from tests.support.router import STREAMS, RouterJob
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROUNDS = 4
SPANS_PER_ROUND_MAX = 12
"""A publish, two appends at most, a micro-batch of three, and the fetches of a Spark job."""


class Pipeline:
    """nats, logd, a collector and perhaps a router; each traces everything."""

    def __init__(self, directory: Path, nats_url: str, **of_logd: Any) -> None:
        port = free_port()
        self.tracing: dict[str, Any] = {
            "endpoint": f"http://127.0.0.1:{port}", "sample": 1.0,
        }  # fmt: skip
        self.socket = directory / "s"
        self.logd = Logd(directory / "logd", nats_url, STREAMS, tracing=self.tracing | of_logd)
        sources: list[dict[str, Any]] = [
            {"type": "unix", "path": str(self.socket)},
            {"type": "otlp", "grpc": None, "http": f"127.0.0.1:{port}"},
        ]
        self.collector = Collector(directory / "c", nats_url, sources, tracing=self.tracing)
        self.daemons: list[Daemon] = [self.logd.daemon, self.collector.daemon]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.logd)
            stack.enter_context(self.collector)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, number: int) -> None:
        """One batch of the app's."""
        with UnixSender(self.socket, f"app-{number}", lambda n: [log_line(n)], window=1) as sender:
            wait_until(lambda: sender.acked >= 1)

    def spans(self) -> list[dict[str, Any]]:
        """All that are in the log."""
        return [json.loads(value or b"") for value in self.logd.values("traces")]

    def is_quiet(self) -> bool:
        """Whether every span that ended is in the log, and nothing else is under way."""
        counts = [daemon.status()["info"]["tracing"] for daemon in self.daemons]
        sent = sum(one["sent"] for one in counts)
        unsent = sum(one["unsent"] for one in counts)
        return unsent == 0 and self.collector.is_idle() and len(self.spans()) == sent


@pytest.fixture
def pipeline(tmp_path: Path, nats_url: str) -> Iterator[Pipeline]:
    with Pipeline(tmp_path, nats_url) as running:
        yield running


def test_spans_stay_bounded_over_many_loops(tmp_path: Path, pipeline: Pipeline) -> None:
    job = RouterJob(tmp_path / "router", pipeline.logd.fetch, tracing=pipeline.tracing)
    try:
        job.daemon.start(within_s=90)
        pipeline.daemons.append(job.daemon)
        seen = 0
        for number in range(ROUNDS):
            pipeline.send(number)
            total = _settled(pipeline, job)
            assert 0 < total - seen <= SPANS_PER_ROUND_MAX * _batches(pipeline, seen), number
            seen = total
        # What was delivered last were spans: had that made others, they would be there.
        for _ in range(ROUNDS):
            assert _settled(pipeline, job) == seen
        found = Counter(
            (span["resource"]["service.name"], span["name"]) for span in pipeline.spans()
        )
        assert {
            ("penstock.collector", "publish"), ("penstock.logd", "append"),
            ("penstock.logd", "fetch"), ("penstock.router", "micro-batch"),
            ("penstock.router", "deliver"),
        } <= set(found)  # fmt: skip
        _check_links(pipeline.spans())
    finally:
        job.daemon.close()


def _settled(pipeline: Pipeline, job: RouterJob) -> int:
    """How many spans there are once all of them are in the lake."""

    def everything_is_delivered() -> bool:
        if not pipeline.is_quiet():
            return False
        with pipeline.logd.client() as log:
            ends = {name: log.offsets(name)[1] for name in ("logs", "traces")}
        return job.committed() == ends and pipeline.is_quiet()

    wait_until(everything_is_delivered, within_s=60)
    return len(pipeline.spans())


def _batches(pipeline: Pipeline, seen: int) -> int:
    """Batches that the app's records came in since."""
    return sum(span["name"] == "publish" for span in pipeline.spans()[seen:])


def _check_links(spans: list[dict[str, Any]]) -> None:
    """logd's span of a batch refers to the collector's."""
    published = {span["trace_id"]: span["span_id"] for span in spans if span["name"] == "publish"}
    assert all(one == f"{span_of(int(trace, 16)):016x}" for trace, one in published.items())
    linked = {
        link["trace_id"]: link["span_id"]
        for span in spans
        if span["name"] == "append"
        for link in span.get("links", ())
    }
    assert published.items() <= linked.items()


def test_where_own_subjects_are_wrong_the_sample_bounds_the_loop(
    tmp_path: Path, nats_url: str
) -> None:
    wrong = {"own_subjects": ["elsewhere"], "sample": 0.2}
    with Pipeline(tmp_path, nats_url, **wrong) as pipeline:
        for number in range(ROUNDS):
            pipeline.send(number)
        wait_until(pipeline.is_quiet, within_s=60, what="the loop has ended")
