"""`penstock trace`: where a record is, from the collector that took it to every sink."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import ConsoleConfig, find_config
from penstock.deploy.trace.edges import ask_collectors, questions_of
from penstock.deploy.trace.explain import Trace, explain
from penstock.deploy.trace.find import (
    Findings,
    Scope,
    Search,
    at_position,
    by_id,
    ranges,
    scan,
)
from penstock.deploy.trace.parts import JobUnavailableError, Parts, PartsClient
from penstock.deploy.trace.report import report
from penstock.deploy.up.layout import Layout
from penstock.logd.cli.output import safe
from penstock.logd.cli.server import advice
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError, RefusedError
from penstock.service.cli import Position
from penstock.service.config import check_document

_WRONG_NAMES: Final = frozenset({"UNKNOWN_STREAM", "UNKNOWN_PARTITION"})
_POSITION: Final = re.compile(r"(.+)/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuestion:
    """What `penstock trace` is asked for; exactly one kind of name is given.

    Attributes:
        trace_ids: Ids of traces.
        record_ids: Ids of records.
        positions: STREAM/PARTITION/OFFSET each.
        where: A condition in the language of routes.
        streams: Streams to look in; empty: all.
        start: Begin of the search in each partition.
        end: Its end.
        limit: Maximum records.
        job_files: Jobs whose files are read if they do not answer.
    """

    trace_ids: tuple[str, ...] = ()
    record_ids: tuple[str, ...] = ()
    positions: tuple[str, ...] = ()
    where: str | None = None
    streams: tuple[str, ...] = ()
    start: Position = "earliest"
    end: Position = "latest"
    limit: int = 20
    job_files: tuple[Path, ...] = ()

    def check(self) -> None:
        """Check that it says what is looked for, in one way.

        Raises:
            UsageError: It does not.
        """
        kinds = (bool(self.trace_ids or self.record_ids), bool(self.positions), bool(self.where))
        if sum(kinds) != 1:
            raise click.UsageError(
                "say what to look for: --trace-id or --record-id, or --position, or --where"
            )
        for position in self.positions:
            if _POSITION.fullmatch(position) is None:
                raise click.UsageError(f"--position {position}: it looks like logs/0/4711")


def trace_records(
    config: ConsoleConfig, question: TraceQuestion, launched: Path | None = None
) -> Trace:
    """Find records and say what became of each.

    Args:
        config: Addresses and credentials.
        question: What is looked for.
        launched: The job file of the part `router`, which `penstock up` wrote.

    Raises:
        UsageError: The condition is not valid.
        UnavailableError: logd cannot be asked, or no job, which a condition needs.
    """
    if config.logd is None:
        raise UnavailableError(
            "nothing says where logd is", fix="name its fetch address with --server"
        )
    client = PartsClient(config)
    with ExitStack() as stack:
        parts = asyncio.run(client.statuses())
        files = [*question.job_files]
        if launched is not None and "router" in parts.silent:
            files.append(launched)
        if files:
            parts = _with_stopped_jobs(client, config, parts, files, stack)
        return _trace(config, question, client, parts)


def _with_stopped_jobs(
    client: PartsClient,
    config: ConsoleConfig,
    parts: Parts,
    job_files: Sequence[Path],
    stack: ExitStack,
) -> Parts:
    """The parts, with the jobs that do not answer and whose files are read instead."""
    from penstock.deploy.trace.stopped_jobs import find_stopped_jobs

    parts, jobs = find_stopped_jobs(job_files, parts, config)
    for job in jobs:
        stack.callback(job.close)
        client.answer_for(job.name, job.ask)
    return parts


def _trace(
    config: ConsoleConfig, question: TraceQuestion, client: PartsClient, parts: Parts
) -> Trace:
    assert config.logd is not None, "checked before"
    try:
        with LogClient(config.logd, access=config.access.access()) as log:
            found = _found(log, question, client, parts)
    except LogdError as error:
        if isinstance(error, RefusedError) and error.code in _WRONG_NAMES:
            raise click.UsageError(str(error)) from None
        raise UnavailableError(f"logd: {error}", fix=advice(error)) from None
    trace = asyncio.run(explain(client, parts, found.records))
    trace.looked_at, trace.is_cut = found.looked_at, found.is_cut
    trace.silent |= dict.fromkeys(found.problems, "a part of the log cannot be read")
    questions = questions_of(
        question.trace_ids,
        question.record_ids,
        question.where,
        start=question.start,
        limit=question.limit,
    )
    trace.edges, silent = asyncio.run(ask_collectors(client, parts.collectors, questions))
    trace.silent |= silent
    return trace


def _found(log: LogClient, question: TraceQuestion, client: PartsClient, parts: Parts) -> Findings:
    if question.positions:
        records = []
        for position in question.positions[: question.limit]:
            stream, partition, offset = position.rsplit("/", 2)
            records.append(at_position(log, stream, int(partition), int(offset)))
        return Findings(records, len(records))
    search = _search(question, client, parts)
    scope = Scope(question.streams, question.start, question.end)
    return scan(log, ranges(log, scope), search, limit=question.limit)


def _search(question: TraceQuestion, client: PartsClient, parts: Parts) -> Search:
    if question.where is None:
        return by_id(question.trace_ids, question.record_ids)
    from penstock.deploy.trace.condition import by_condition

    if not parts.jobs:
        raise UnavailableError(
            "no job answers, and a job has to read the condition",
            fix="start it, name its job file with --job, or look for --trace-id, --record-id or"
            " --position",
        )
    try:
        return by_condition(question.where, client, next(iter(parts.jobs)))
    except JobUnavailableError as error:
        raise click.UsageError(f"--where: {error}") from None


def run_trace(
    *,
    directory: Path | None,
    config_path: Path | None,
    server: str | None,
    urls: tuple[str, ...],
    as_json: bool,
    question: TraceQuestion,
) -> None:
    """Print what became of records and exit: 0 all there, 1 something missing, 69 not all known.

    Raises:
        UsageError: What is asked for is not clear.
        ServiceError: The pipeline cannot be found or asked.
    """
    question.check()
    launched = None
    if urls or server is not None:
        document = {"parts": {url: url for url in urls}, "logd": server}
        config = check_document(ConsoleConfig, document, Path("the command line"))
    else:
        config = find_config(config_path, directory)
        launched = None if config_path is not None else _job_of_launch(config)
    trace = trace_records(config, question, launched)
    if as_json:
        sys.stdout.write(json.dumps(trace.as_json()) + "\n")
    else:
        for line in report(trace):
            click.echo(safe(line))
    sys.exit(trace.exit_code)


def _job_of_launch(config: ConsoleConfig) -> Path:
    """The job file that `penstock up` wrote in the directory whose console this is."""
    assert config.token_file is not None, "find_config names it"
    return Layout(config.token_file.parent).config / "router.yaml"
