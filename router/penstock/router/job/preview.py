"""A look at what a job would do with records of now: counts by route, and each sink's requests."""

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from penstock.base.pluralize import pluralize
from penstock.router.job.batch_writer import BatchWriter
from penstock.router.job.config import JobConfig
from penstock.router.job.routes import matches, routable
from penstock.router.replay.backfill_plan import Chunk
from penstock.router.replay.bounded_run import BoundedRun
from penstock.router.sinks import Preview, make_sink
from penstock.router.sinks.http.settings import legible

BODY_CHARACTERS: Final = 2000
"""Maximum characters of a request's body in the text output; the rest is given by its length."""


@dataclass(frozen=True, slots=True)
class RouteCount:
    """Number of records of the sample that a route takes."""

    name: str
    records: int
    sinks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepCount:
    """Number of records that a transform of a route changed, or left out."""

    route: str
    step: str
    records: int


@dataclass(frozen=True, slots=True)
class SinkPreview:
    """Rows and requests of one sink.

    Attributes:
        name: The sink.
        routed: Records that routes lead to it.
        malformed: Rows that are no records and would become dead letters.
        written: Records that remain after transforms.
        requests: The requests, as they would be sent.
        steps: The result of each transform, in order.
    """

    name: str
    routed: int
    malformed: int
    written: int
    requests: tuple[Preview, ...]
    steps: tuple[StepCount, ...] = ()


@dataclass(frozen=True, slots=True)
class JobPreview:
    """A whole job's."""

    records: int
    routes: tuple[RouteCount, ...]
    sinks: tuple[SinkPreview, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def last_records(run: BoundedRun, records: int) -> Chunk:
    """The last records of the log, as many of each partition as its share."""
    share = max(records // max(len(run.state.readable), 1), 1)
    return Chunk(
        {at: max(span.start, span.end - share) for at, span in run.state.readable.items()},
        {at: span.end for at, span in run.state.readable.items()},
    )


def preview(run: BoundedRun, chunk: Chunk, sinks: tuple[str, ...]) -> JobPreview:
    """Route a chunk of the log and ask sinks what they would send; nothing is sent or kept.

    Raises:
        RunFailedError: Spark fails.
        ConfigError: A transform cannot be used.
    """
    job = run.config
    routes = job.routes
    flags = [matches(route).alias(f"_{index}") for index, route in enumerate(routes)]
    aside = F.col("malformed") if job.sends_malformed_to_dlq else F.lit(False)
    taken = run.read(chunk, lambda rows: routable(job, rows).select(aside.alias("_"), *flags))
    counts, left = [], pc.invert(taken.column("_"))
    malformed = taken.num_rows - _count(left)
    for index, route in enumerate(routes):
        takes = pc.and_not(taken.column(f"_{index}"), taken.column("_"))
        if job.routing == "first_match":
            takes = pc.and_(takes, left)
        counts.append(RouteCount(route.name, _count(takes), tuple(route.sinks)))
        left = pc.and_not(left, takes)
    counts.append(RouteCount("(else)", _count(left), tuple(job.unmatched.sinks)))
    if malformed:
        counts.append(RouteCount("(malformed)", malformed, ()))
    with TemporaryDirectory(prefix="penstock-router-") as directory:
        shown = [sink_preview(run, name, chunk, Path(directory) / name) for name in sinks]
    return JobPreview(taken.num_rows, tuple(counts), tuple(shown))


def sink_preview(run: BoundedRun, name: str, chunk: Chunk, directory: Path) -> SinkPreview:
    """Return the preview of one sink on a chunk of the log.

    Raises:
        RunFailedError: Spark fails.
        ConfigError: A transform cannot be used.
    """
    context = run.context(name, directory)
    sink = make_sink(legible(run.config.sinks[name]), context)
    batch_writer = BatchWriter(run.config, sink, context)
    table = run.rows(chunk)(name, batch_writer.steps.columns)
    table, malformed = batch_writer.steps.divide(table)
    routed = table.num_rows
    changed: dict[int, list[tuple[str, int]]] = {}
    if run.config.transforms_to(name) and routed:
        table = batch_writer.steps.transform(table, 0, changed=changed).rows
    steps = tuple(
        StepCount(run.config.route_name(index), verb, records)
        for index, counts in sorted(changed.items())
        for verb, records in counts
    )
    requests = sink.preview(table) if table.num_rows else []
    written = table.num_rows
    return SinkPreview(name, routed, malformed.num_rows, written, tuple(requests), steps)


def _count(flags: Any) -> int:
    return int(pc.sum(pc.cast(flags, "int64")).as_py() or 0)


def text(job: JobConfig, shown: JobPreview, *, whole: bool) -> str:
    """Format the preview for people; bodies are cut unless `whole`."""
    lines = [
        f"{pluralize(shown.records, 'record')} of {', '.join(job.streams)}; nothing is sent",
        "",
        "routes",
    ]
    width = max(len(route.name) for route in shown.routes)
    for route in shown.routes:
        nowhere = "dead letters" if route.name == "(malformed)" else "left out"
        to = ", ".join(route.sinks) or nowhere
        lines.append(f"  {route.name:<{width}} {route.records:>8}  -> {to}")
    for sink in shown.sinks:
        about = (
            f"sink {sink.name}: {pluralize(sink.routed, 'record')} routed, {sink.written} to write"
        )
        lines += ["", f"{about}, {sink.malformed} malformed"]
        for step in sink.steps:
            did = "left out" if step.step in ("sample", "dedupe") else "changed"
            lines.append(
                f"  {step.step} of route {step.route} {did} {pluralize(step.records, 'record')}"
            )
        for request in sink.requests:
            lines.append(f"  {request.target}  ({pluralize(request.records, 'record')})")
            lines += [f"    {name}: {value}" for name, value in request.headers]
            lines += [f"    {line}" for line in _body(request.body, whole=whole)]
    return "\n".join(lines)


def _body(body: str, *, whole: bool) -> list[str]:
    if whole or len(body) <= BODY_CHARACTERS:
        return body.splitlines()
    rest = f"… {pluralize(len(body) - BODY_CHARACTERS, 'more character')}; --whole shows them"
    return [*body[:BODY_CHARACTERS].splitlines(), rest]
