"""The answer to a question for records: where each is, from the collector to every sink.

`penstock trace` and the console's search page ask here. The answer is a `Trace`, whose JSON form
both show.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.applications import not_handed_over
from penstock.deploy.trace.edges import ask_collectors, questions_of, service_of
from penstock.deploy.trace.explain import RecordTrace, Trace, explain
from penstock.deploy.trace.find import (
    Findings,
    Progress,
    Scope,
    Search,
    at_position,
    by_id,
    by_terms,
    narrowed,
    ranges,
    scan,
)
from penstock.deploy.trace.parts import JobUnavailableError, Parts, PartsClient
from penstock.deploy.trace.question import ConditionError, TraceQuestion, position_of
from penstock.logd.cli.server import advice
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError, RefusedError

_LOOK_S: Final = 0.1
"""Seconds between looks whether a search was cancelled, while parts are asked."""

_WRONG_NAMES: Final = frozenset({"UNKNOWN_STREAM", "UNKNOWN_PARTITION"})

T = TypeVar("T")


def answer_question(
    config: ConsoleConfig,
    question: TraceQuestion,
    client: PartsClient,
    parts: Parts,
    *,
    progress: Progress | None = None,
) -> Trace:
    """Find records and say what became of each. It blocks: call it on a thread.

    Args:
        config: Address of logd, and credentials.
        question: The question.
        client: Asks the parts.
        parts: The parts, as `PartsClient.statuses` found them.
        progress: Is told how far the search is, and may end it.

    Raises:
        ConditionError: The condition is not valid.
        UsageError: There is no such stream.
        UnavailableError: logd cannot be asked, or no job, which a condition needs.
    """
    if config.logd is None:
        raise UnavailableError(
            "nothing says where logd is", fix="name its fetch address with --server"
        )
    progress = Progress() if progress is None else progress
    try:
        with LogClient(config.logd, access=config.access.access()) as log:
            found = _found(log, question, client, parts, progress)
    except LogdError as error:
        if isinstance(error, RefusedError) and error.code in _WRONG_NAMES:
            raise click.UsageError(str(error)) from None
        raise UnavailableError(f"logd: {error}", fix=advice(error)) from None
    if not question.with_ways:
        records = [RecordTrace(it, None, ()) for it in found.records]
        trace = Trace(records, silent=dict(parts.silent))
    else:
        progress.parts = len(parts.jobs) + len(parts.collectors)
        progress.is_to_end()
        trace = asyncio.run(_until_ended(explain(client, parts, found.records), progress))
        _ask_collectors(client, parts, question, trace, progress)
    trace.looked_at, trace.is_cut, trace.is_ended = found.looked_at, found.is_cut, found.is_ended
    trace.silent |= dict.fromkeys(found.problems, "a part of the log cannot be read")
    return trace


def _condition_search(where: str, client: PartsClient, parts: Parts) -> Search:
    from penstock.deploy.trace.condition import by_condition

    if not parts.jobs:
        raise UnavailableError(
            "no job answers, and a job has to read the condition",
            fix="start it, name its job file (--job, search.job_files), or look for an id, a"
            " service or a text",
        )
    try:
        return by_condition(where, client, next(iter(parts.jobs)))
    except JobUnavailableError as error:
        raise ConditionError(str(error).removeprefix("where: ")) from None


@contextmanager
def with_stopped_jobs(
    client: PartsClient, config: ConsoleConfig, parts: Parts, job_files: Sequence[Path]
) -> Iterator[Parts]:
    """The parts, with the jobs that do not answer and whose files are read instead.

    A process can read the files of jobs for one search at a time.
    """
    if not job_files:
        yield parts
        return
    from penstock.deploy.trace.stopped_jobs import find_stopped_jobs

    with ExitStack() as stack:
        parts, jobs = find_stopped_jobs(job_files, parts, config)
        for job in jobs:
            stack.callback(job.close)
            client.answer_for(job.name, job.ask)
        yield parts


async def _until_ended(asking: Coroutine[Any, Any, T], progress: Progress) -> T:
    """The answers of parts; a search that is ended without a result ends the questions, too."""
    task = asyncio.ensure_future(asking)
    while not task.done():
        await asyncio.wait({task}, timeout=_LOOK_S)
        try:
            progress.is_to_end()
        except BaseException:
            task.cancel()
            await asyncio.wait({task})
            raise
    return await task


def _ask_collectors(
    client: PartsClient, parts: Parts, question: TraceQuestion, trace: Trace, progress: Progress
) -> None:
    if question.after:  # they were asked for the first records
        return
    questions = questions_of(question)
    asking = ask_collectors(client, parts.collectors, questions)
    edges, silent = asyncio.run(_until_ended(asking, progress))
    if isinstance(question.end, datetime):
        end_ns = int(question.end.timestamp() * 1e9)
        edges = [it for it in edges if it.get("time_ns", 0) < end_ns]
    found = ids_found(trace, "record_id")
    trace.edges = [it | {"in_log": it.get("record_id") in found} for it in edges]
    trace.silent |= silent
    trace.unknown_ids = unknown_ids(question, trace)
    if _may_lack_records(question, trace):
        trace.applications = not_handed_over(parts.collectors, service_of(question))


def _may_lack_records(question: TraceQuestion, trace: Trace) -> bool:
    """Whether there may be records that match and of which no part knows anything."""
    if question.positions:
        return False
    return bool(question.trace_ids or not question.record_ids or trace.unknown_ids)


def unknown_ids(question: TraceQuestion, trace: Trace) -> list[str]:
    """The ids in question that no record found has, and of which no collector knows."""
    unknown = list[str]()
    for key, ids in (("trace_id", question.trace_ids), ("record_id", question.record_ids)):
        known = ids_found(trace, key) | {it.get(key) for it in trace.edges}
        unknown += [one for one in dict.fromkeys(ids) if one not in known]
    return unknown


def ids_found(trace: Trace, key: str) -> set[Any]:
    """The values of an id that the records found have."""
    found = (it.record.fields().get(key) for it in trace.records)
    return {one for one in found if isinstance(one, str)}


def _at_positions(log: LogClient, named: Sequence[tuple[str, int, int]]) -> Findings:
    """The records at some positions; where logd cannot be asked for one, the others are told.

    Raises:
        LogdError: logd cannot be asked for any.
    """
    found, away = Findings(), dict[tuple[str, int], LogdError]()
    for stream, partition, offset in named:
        if (stream, partition) in away:
            continue
        try:
            found.records.append(at_position(log, stream, partition, offset))
        except RefusedError:
            raise
        except LogdError as error:
            away[stream, partition] = error
    if away and not found.records:
        raise next(iter(away.values()))
    found.problems = [f"{stream}/{number}: {error}" for (stream, number), error in away.items()]
    found.looked_at = len(found.records)
    return found


def _found(
    log: LogClient,
    question: TraceQuestion,
    client: PartsClient,
    parts: Parts,
    progress: Progress,
) -> Findings:
    if question.positions:
        named = [position_of(it) for it in question.positions[: question.limit]]
        found = _at_positions(log, [it for it in named if it is not None])
        found.is_cut = len(question.positions) > question.limit
        return found
    if question.where is not None:
        search = _condition_search(question.where, client, parts)
    else:
        ids = question.trace_ids, question.record_ids
        search = by_id(*ids) if any(ids) else by_terms(question.terms)
        if any(ids) and question.terms:
            search = narrowed(search, question.terms)
    scope = Scope(question.streams, question.start, question.end, position_of(question.after))
    return scan(log, ranges(log, scope, progress), search, limit=question.limit, progress=progress)
