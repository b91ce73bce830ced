"""`penstock trace`: where a record is, from the collector that took it to every sink."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from penstock.base.errors import UnavailableError
from penstock.deploy.console.config import ConsoleConfig, find_config
from penstock.deploy.trace.answer import answer_question
from penstock.deploy.trace.explain import Trace
from penstock.deploy.trace.find import Search
from penstock.deploy.trace.parts import JobUnavailableError, Parts, PartsClient
from penstock.deploy.trace.question import TraceQuestion
from penstock.deploy.trace.report import report
from penstock.deploy.up.layout import Layout
from penstock.logd.cli.output import safe
from penstock.service.config import check_document


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
    client = PartsClient(config)
    with ExitStack() as stack:
        parts = asyncio.run(client.statuses())
        files = [*question.job_files]
        if launched is not None and "router" in parts.silent:
            files.append(launched)
        if files:
            parts = _with_stopped_jobs(client, config, parts, files, stack)
        return answer_question(config, question, client, parts, by_condition=_condition_search)


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


def _condition_search(where: str, client: PartsClient, parts: Parts) -> Search:
    from penstock.deploy.trace.condition import by_condition

    if not parts.jobs:
        raise UnavailableError(
            "no job answers, and a job has to read the condition",
            fix="start it, name its job file with --job, or look for --trace-id, --record-id or"
            " --position",
        )
    try:
        return by_condition(where, client, next(iter(parts.jobs)))
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
