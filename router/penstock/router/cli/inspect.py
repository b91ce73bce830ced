"""Commands that look and change nothing: plan, preview, status, sinks."""

import json
from pathlib import Path
from typing import Any, Final

import click

from penstock.base.pluralize import pluralize
from penstock.router.cli.job import (
    check_libraries,
    job_argument,
    load_job,
    not_running,
    quiet_option,
    teller,
)
from penstock.router.columns.schema import view
from penstock.router.job.config import JobConfig, Route
from penstock.router.telemetry import times_replaced
from penstock.service import AdminStatusError, UnavailableError, ask_admin
from penstock.service.cli import IntRange
from penstock.service.config import option_lines

_TIMEOUT_S: Final = 10.0


@click.command(epilog="Example: penstock router plan job.yaml")
@job_argument
def plan(path: Path) -> None:
    """Show a job's streams, routes, sinks and columns."""
    job = load_job(path)
    check_libraries(job)
    click.echo(picture(job))


@click.command(epilog="Example: penstock router preview job.yaml --records 200 --sink search")
@job_argument
@click.option(
    "--records", type=IntRange(1, 100_000), default=1000, show_default=True,
    help="How many of the last records to route.",
)  # fmt: skip
@click.option("--sink", "only", multiple=True, help="Only this sink's requests; repeatable.")
@click.option("--whole", is_flag=True, help="Show requests whole, however long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, and nothing else.")
@quiet_option
def preview(
    path: Path, *, records: int, only: tuple[str, ...], whole: bool, as_json: bool, quiet: bool
) -> None:
    """Route the last records of the log and show what each sink would send; send nothing."""
    from penstock.router.job.preview import last_records, text
    from penstock.router.job.preview import preview as look
    from penstock.router.replay.bounded_run import bounded_run

    job = load_job(path)
    for name in only:
        if name not in job.sinks:
            raise click.UsageError(f"there is no sink {name!r}, only {', '.join(job.sinks)}")
    tell = teller(quiet=quiet or as_json)
    with bounded_run(job, needs_lock=False, tell=tell) as run:
        shown = look(run, last_records(run, records), only or tuple(job.sinks))
    if as_json:
        click.echo(json.dumps(shown.as_json()))
    else:
        click.echo(text(job, shown, whole=whole))


@click.command(epilog="Example: penstock router status job.yaml --json")
@job_argument
@click.option("--json", "as_json", is_flag=True, help="The whole status as one JSON object.")
def status(path: Path, *, as_json: bool) -> None:
    """Show offsets, lag, rates and errors of a running job's sinks; exit 69 when none runs."""
    job = load_job(path)
    found = _status_of(job)
    click.echo(json.dumps(found) if as_json else status_table(found))


@click.command(epilog="Example: penstock router sinks")
@click.option(
    "--markdown", is_flag=True, help="Print the table of guarantees in docs/router/sinks.md."
)
def sinks(*, markdown: bool) -> None:
    """List the types of sinks, what they guarantee, and their options."""
    from penstock.router.sinks.registry import guarantees, known_types, sink_kind

    if markdown:
        click.echo("\n".join(guarantees()))
        return
    for name in known_types():
        try:
            kind = sink_kind(name)
        except ValueError as error:
            click.echo(f"{name}: {error}")
            continue
        first, *options = option_lines(kind.config)
        click.echo(first if kind.package == "penstock" else f"{first} (package {kind.package})")
        click.echo(f"    on replay: {kind.sink.guarantee}")
        for line in options:
            click.echo(line)


@click.command("index-template", epilog="Example: penstock router index-template job.yaml search")
@job_argument
@click.argument("sink")
@click.option("--opensearch", is_flag=True, help="For OpenSearch, not for Elasticsearch.")
def template(path: Path, sink: str, *, opensearch: bool) -> None:
    """Print the index template for a sink of the type elasticsearch.

    PUT it to the cluster as _index_template/NAME before the index is made, or roll it over after.
    """
    from penstock.router.sinks.elasticsearch.index_template import index_template
    from penstock.router.sinks.elasticsearch.sink import ElasticsearchSink

    job = load_job(path)
    config = job.sinks.get(sink)
    if not isinstance(config, ElasticsearchSink):
        known = [name for name, it in job.sinks.items() if isinstance(it, ElasticsearchSink)]
        others = f"only {', '.join(known)}" if known else "and no other one"
        raise click.UsageError(f"the job has no sink {sink!r} of the type elasticsearch, {others}")
    click.echo(json.dumps(index_template(config, opensearch=opensearch), indent=2))


def status_table(found: dict[str, Any]) -> str:
    """A status for people: a line for each sink, then what is wrong."""
    info = found["info"]
    columns = "sink offsets lag received sent errors records/s batch-s restarts times-replaced"
    rows = [(*columns.split(), "circuit")]
    for stage in found["stages"]:
        name = stage["name"].partition("/")[2]
        sink = info["sinks"].get(name, {})
        at = " ".join(f"{stream}={offset}" for stream, offset in sink.get("committed", {}).items())
        numbers = (stage["lag"], stage["received"], stage["sent"], stage["errors"])
        replaced = times_replaced(stage.get("detail", {}))
        batch_s = sink.get("batch_s")
        pace = (
            sink.get("records_per_s", 0),
            "-" if batch_s is None else batch_s,
            sink.get("restarts", 0),
            replaced,
        )
        rows.append((name, at, *map(str, numbers), *map(str, pace), _circuit(sink)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"job {found['name']}: {found['health']}, Spark's UI: {info.get('spark_ui') or '-'}"]
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += _replay_lines(info.get("replays") or {})
    if (problem := info.get("dead_letter_stream") or "off") != "off":
        lines.append(f"not all dead letters are in dead_letter_stream: {problem}")
    return "\n".join([*lines, *found["reasons"]])


def _replay_lines(replays: dict[str, Any]) -> list[str]:
    it = replays.get("progress")
    if not it:
        return []
    process = f" (process {replays['process']})" if replays.get("process") else ""
    if not it["of"]:
        return [f"replay to {it['sink']}{process}: not begun"]
    far = f"{it['done']} of {it['of']} {it['unit']}, {pluralize(it['records'], 'record')}"
    return [f"replay to {it['sink']}{process}: {far}, circuit {_circuit(it)}"]


def _circuit(sink: dict[str, Any]) -> str:
    circuit = sink.get("circuit", {"state": "-", "retry_in_s": 0})
    state = str(circuit["state"]).replace("_", "-")
    return f"{state} {circuit['retry_in_s']:g}s" if circuit["retry_in_s"] else state


def _status_of(job: JobConfig) -> dict[str, Any]:
    try:
        answer = ask_admin(job.admin, "/status", job.admin_access, timeout_s=_TIMEOUT_S)
    except AdminStatusError as error:
        raise UnavailableError(
            f"what answers at {job.admin} does not show a status: {error.said}",
            fix="let `admin_access` name the token of the running job, or correct the key `admin`",
        ) from None
    except OSError as error:
        raise not_running(job, error) from None
    return _of_this_job(job, answer)


def _is_status(found: Any) -> bool:
    if not isinstance(found, dict) or found.get("component") != "router":
        return False
    parts = {"name": str, "health": str, "reasons": list, "stages": list, "info": dict}
    return all(isinstance(found.get(key), kind) for key, kind in parts.items())


def _of_this_job(job: JobConfig, answer: bytes) -> dict[str, Any]:
    """A status; addresses are given again, to others."""
    try:
        found: dict[str, Any] | None = json.loads(answer)
    except (ValueError, RecursionError):
        found = None
    if found is None or not _is_status(found):
        who = "something else than a router"
    elif found.get("name") != job.job:
        who = f"the job {found.get('name')!r}"
    else:
        return found
    raise UnavailableError(
        f"at {job.admin} answers {who}, and not the job {job.job!r}",
        fix="start it; or correct its key `admin`",
    )


def picture(job: JobConfig) -> str:
    """Streams to routes to sinks, and the columns that a `where` may use."""
    lines = [f"job {job.job}", "", "streams", f"  {', '.join(job.streams)}  (from {job.logd})", ""]
    lines.append("routes" if job.routing == "fan_out" else "routes, the first that matches")
    width = max(len(route.name) for route in job.routes)
    lines += [_route_line(route, width) for route in job.routes]
    others = ", ".join(job.unmatched.sinks) or "left out, counted"
    if all(route.where is not None for route in job.routes):
        lines.append(f"  {'(else)':<{width}}  what no route wants -> {others}")
    lines += ["", "sinks"]
    lines += [f"  {name:<{width}}  {sink.about()}" for name, sink in job.sinks.items()]
    lines += ["", "columns"]
    columns = view("records").columns
    lines += [f"  {column.name:<28} {column.spark.simpleString()}" for column in columns]
    return "\n".join(lines)


def _route_line(route: Route, width: int) -> str:
    condition = "everything" if route.where is None else f"where {route.where}"
    steps = "".join(f", {step.verb}" for step in route.transforms)
    return f"  {route.name:<{width}}  {condition}{steps} -> {', '.join(route.sinks)}"
