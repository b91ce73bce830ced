"""The answer to a question for records: where each is, from the collector to every sink.

`penstock trace` and the console's search page ask here. The answer is a `Trace`, whose JSON form
both show.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import click

from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.trace.edges import ask_collectors, questions_of
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
from penstock.deploy.trace.parts import Parts, PartsClient
from penstock.deploy.trace.question import TraceQuestion, position_of
from penstock.logd.cli.server import advice
from penstock.logd.client import LogClient
from penstock.logd.errors import LogdError, RefusedError

_WRONG_NAMES: Final = frozenset({"UNKNOWN_STREAM", "UNKNOWN_PARTITION"})

ConditionSearch = Callable[[str, PartsClient, Parts], Search]
"""Makes a search of a condition in the language of routes, which a job reads."""


def answer_question(
    config: ConsoleConfig,
    question: TraceQuestion,
    client: PartsClient,
    parts: Parts,
    *,
    by_condition: ConditionSearch | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Find records and say what became of each. It blocks: call it on a thread.

    Args:
        config: Address of logd, and credentials.
        question: The question.
        client: Asks the parts.
        parts: The parts, as `PartsClient.statuses` found them.
        by_condition: Reads a condition, where the question may have one.
        progress: Is told how far the search is, and may end it.

    Raises:
        UsageError: The condition is not valid, or there is no such stream.
        UnavailableError: logd cannot be asked, or no job, which a condition needs.
    """
    if config.logd is None:
        raise UnavailableError(
            "nothing says where logd is", fix="name its fetch address with --server"
        )
    progress = Progress() if progress is None else progress
    try:
        with LogClient(config.logd, access=config.access.access()) as log:
            found = _found(log, question, client, parts, by_condition, progress)
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
        trace = asyncio.run(explain(client, parts, found.records))
        _ask_collectors(client, parts, question, trace)
    trace.looked_at, trace.is_cut, trace.is_ended = found.looked_at, found.is_cut, found.is_ended
    trace.silent |= dict.fromkeys(found.problems, "a part of the log cannot be read")
    return trace


def _ask_collectors(
    client: PartsClient, parts: Parts, question: TraceQuestion, trace: Trace
) -> None:
    if question.after:  # they were asked for the first records
        return
    questions = questions_of(question)
    edges, silent = asyncio.run(ask_collectors(client, parts.collectors, questions))
    if isinstance(question.end, datetime):
        end_ns = int(question.end.timestamp() * 1e9)
        edges = [it for it in edges if it.get("time_ns", 0) < end_ns]
    trace.edges = edges
    trace.silent |= silent


def _found(
    log: LogClient,
    question: TraceQuestion,
    client: PartsClient,
    parts: Parts,
    by_condition: ConditionSearch | None,
    progress: Progress,
) -> Findings:
    if question.positions:
        named = [position_of(it) for it in question.positions[: question.limit]]
        records = [at_position(log, *it) for it in named if it is not None]
        return Findings(records, len(records))
    if question.where is not None:
        assert by_condition is not None, "only a caller that can read conditions asks one"
        search = by_condition(question.where, client, parts)
    else:
        ids = question.trace_ids, question.record_ids
        search = by_id(*ids) if any(ids) else by_terms(question.terms)
        if any(ids) and question.terms:
            search = narrowed(search, question.terms)
    scope = Scope(question.streams, question.start, question.end, position_of(question.after))
    return scan(log, ranges(log, scope, progress), search, limit=question.limit, progress=progress)
