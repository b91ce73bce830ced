"""`penstock trace`: where a record is, from the collector that took it to every sink."""

import asyncio
import json
import sys
from pathlib import Path

import click

from penstock.deploy.console.config import ConsoleConfig, find_config
from penstock.deploy.trace.answer import answer_question, with_stopped_jobs
from penstock.deploy.trace.explain import Trace
from penstock.deploy.trace.parts import PartsClient
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
    parts = asyncio.run(client.statuses())
    files = [*question.job_files]
    if launched is not None and "router" in parts.silent:
        files.append(launched)
    with with_stopped_jobs(client, config, parts, files) as all_parts:
        return answer_question(config, question, client, all_parts)


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

    Exit code 0 is about the records that were told: a search that ended at its limit says so.

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
