"""Commands that deliver again: replay a range of the log, look at dead letters and replay them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.base.clock import SystemClock
from penstock.base.pluralize import pluralize
from penstock.logd.client import LogClient
from penstock.router.cli.job import job_argument, load_job, not_running, teller
from penstock.router.deadletters.fields import shown
from penstock.router.deadletters.replayable import DeadLetterFile, find_dead_letters
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.permissions import PATH
from penstock.router.read.offsets import StreamPartition
from penstock.router.replay.audit_log import audited
from penstock.service import (
    AdminStatusError,
    ConfigError,
    ServiceError,
    UnavailableError,
    ask_admin,
)
from penstock.service.cli import POSITION, PenstockGroup

if TYPE_CHECKING:
    from penstock.router.replay.bounded_run import BoundedRun  # Spark, which others do without

_TIMEOUT_S: Final = 10.0
_NO_DEAD_LETTERS: Final = "there are no dead letters"
_WHERE: Final = "An offset, earliest, latest, a time, or 15m ago."


@click.command(
    epilog="\b\nExample:\n  penstock router replay job.yaml --sink lake --from 2026-01-31T03:00:00Z"
)
@job_argument
@click.option("--sink", required=True, help="The one sink that gets the records again.")
@click.option("--from", "begin", type=POSITION, help=_WHERE)
@click.option("--to", "end", type=POSITION, help=f"{_WHERE} Default: as far as the sink has come.")
@click.option("--stream", help="Only this stream; needed for offsets where the job has several.")
@click.option("--resume", "resumes", is_flag=True, help="Go on where a replay was stopped.")
def replay(
    path: Path, sink: str, begin: Any, end: Any, stream: str | None, *, resumes: bool
) -> None:
    """Deliver a range of the log to one sink again, in its earlier batches; the job must not run.

    Batches come whole, as they were, so a sink that knows them replaces them. SIGTERM or Ctrl-C
    stops it, with exit code 75; meanwhile `status` shows it.
    """
    from penstock.router.replay.backfill import backfill, range_of, resume
    from penstock.router.replay.bounded_run import bounded_run

    job = load_job(path)
    _require_sink(job, sink)
    if resumes == (begin is not None) or (resumes and (end is not None or stream is not None)):
        raise click.UsageError("say what to replay with --from, or --resume without a range")
    if stream is not None and stream not in job.streams:
        raise click.UsageError(f"the job does not read {stream!r}, only {', '.join(job.streams)}")
    if len(job.streams) > 1 and stream is None and any(isinstance(it, int) for it in (begin, end)):
        raise click.UsageError("name the stream that the offsets are of with --stream")
    with bounded_run(job, needs_lock=True, tell=teller()) as run:
        if resumes:
            with _attended(run, "range ", sink=sink, resume=True):
                rows = resume(run, sink, click.echo)
        else:
            with LogClient(job.logd, access=job.source.access()) as log:
                first, last = range_of(log, run.state.readable, begin, end, stream)
            asked = {"sink": sink, "from": _ends(first), "until": _ends(last)}
            with _attended(run, "range ", **asked):
                rows = backfill(run, sink, first, last, click.echo)
    click.echo(f"{pluralize(rows, 'record')} went to {sink} again{run.progress.others()}")


@contextmanager
def _attended(run: "BoundedRun", kind: str = "", **about: Any) -> Iterator[None]:
    """A replay within the block can be seen and stopped, and is written down."""
    from penstock.router.replay.process import attended

    clock, directory = SystemClock(), run.config.dead_letters
    with attended(run, clock), audited(directory, clock, run.progress, run.stop, kind, **about):
        yield


def _ends(offsets: Mapping[StreamPartition, int | None]) -> dict[str, int | None]:
    return {f"{at.stream}-{at.partition}": offset for at, offset in offsets.items()}


@click.group(cls=PenstockGroup, epilog="Example: penstock router dlq ls job.yaml")
def dlq() -> None:
    """Dead letters: list them, show them, deliver them again."""


_SINK = click.option("--sink", help="Only this sink's.")


@dlq.command("ls", epilog="Example: penstock router dlq ls job.yaml --sink search")
@job_argument
@_SINK
@click.option("--done", is_flag=True, help="Also those that were delivered again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def dlq_ls(path: Path, *, sink: str | None, done: bool, as_json: bool) -> None:
    """List a job's files of dead letters, with their reasons."""
    files = _dead_letters(load_job(path), sink, done=done)
    if not files:
        click.echo(_NO_DEAD_LETTERS, err=True)
    for file in files:
        it = file.summary()
        if as_json:
            click.echo(json.dumps(it))
            continue
        codes = ", ".join(f"{code} x {count}" for code, count in it["codes"].items())
        told = [it["time"] or "at an unknown time", codes, it["reason"] or "for an unknown reason"]
        if it["problem"] is not None:
            told = [*(told if codes else []), it["problem"]]
        click.echo(shown("  ".join(map(str, (it["name"], it["state"], *told)))))


@dlq.command("show", epilog="Example: penstock router dlq show job.yaml search/logs.5f2c19aa-0-7-9")
@job_argument
@click.argument("names", nargs=-1, required=True)
def dlq_show(path: Path, names: tuple[str, ...]) -> None:
    """Show dead letters, a JSON object a line: record, sink, code, reason, attempt, time."""
    for file in find_dead_letters(load_job(path).dead_letters, names=names, done=True):
        for dead_letter in file.dead_letters():
            click.echo(shown(json.dumps(dead_letter, ensure_ascii=False)))


@dlq.command(
    "replay", epilog="Example: penstock router dlq replay job.yaml --sink search --to lake"
)
@job_argument
@click.argument("names", nargs=-1)
@_SINK
@click.option("--to", "target", help="The sink to deliver to. Default: the one that refused.")
def dlq_replay(path: Path, names: tuple[str, ...], sink: str | None, target: str | None) -> None:
    """Deliver dead letters again, through the target's routes; the job must not run.

    A file is marked as done once a sink has its records; what is refused again is a dead letter
    again. SIGTERM or Ctrl-C stops it, with exit code 75, and the same command goes on; `status`
    shows it.
    """
    from penstock.router.replay.bounded_run import bounded_run
    from penstock.router.replay.dead_letters import replay_dead_letters

    job = load_job(path)
    if target is not None:
        _require_sink(job, target)
    if not _dead_letters(job, sink, names):
        click.echo(_NO_DEAD_LETTERS)
        return
    with bounded_run(job, needs_lock=True, needs_log=False, tell=teller()) as run:
        # Again: a job that had the lock until now may have moved them.
        files = find_dead_letters(job.dead_letters, sink=sink, names=names)
        asked: dict[str, Any] = {"sink": sink, "to": target, "files": len(files)}
        with _attended(run, **asked):
            rows = replay_dead_letters(run, files, target, click.echo)
    click.echo(f"delivered again: {pluralize(rows, 'record')}{run.progress.others()}")


@dlq.command("publish", epilog="Example: penstock router dlq publish job.yaml --sink search")
@job_argument
@click.argument("names", nargs=-1)
@_SINK
def dlq_publish(path: Path, names: tuple[str, ...], sink: str | None) -> None:
    """Send dead letters to the job's `dead_letter_stream`; their files stay where they are.

    That is for dead letters that did not get there when they were written. The stream knows those
    that it has only within its window for duplicates. A file with a line that is no dead letter is
    skipped from there on. Exit code 69 when some are still not stored.
    """
    from penstock.router.deadletters.stream import NatsDeadLetterPublisher, publish_file

    job = load_job(path)
    if job.dead_letter_stream is None:
        raise ConfigError("the job has no dead_letter_stream", fix="set it, with its subject")
    files = _dead_letters(job, sink, names, done=bool(names))
    missed = 0
    odd: list[ServiceError] = []
    with closing(NatsDeadLetterPublisher(job.dead_letter_stream, SystemClock())) as stream:
        for file in files:
            try:
                count, missing = publish_file(file, stream)
            except (ConfigError, UnavailableError) as error:
                odd.append(error)
                click.echo(f"{file.name}: passed over: {shown(error.reason)}")
                continue
            click.echo(f"{file.name}: {count - missing} of {count} are in the stream")
            missed += missing
        problem = stream.problem
    if missed:
        raise UnavailableError(
            f"not in the stream: {pluralize(missed, 'dead letter')}: {problem}",
            fix="see to that and send them again; one that is too large stays in its file",
        )
    for one in odd:
        raise one


@click.command("stop-replay", epilog="Example: penstock router stop-replay job.yaml")
@job_argument
def stop_replay(path: Path) -> None:
    """Stop the running replay, in the job's process or in its own.

    What was delivered stays so, and the same replay goes on from there. It takes the token of the
    job's `actions_token_file`.
    """
    job = load_job(path)
    if job.actions_token_file is None:
        raise ConfigError(
            "the job has no actions_token_file, so nobody may act on it from elsewhere",
            fix="set it; or end a replay in a separate process with SIGTERM or Ctrl-C",
        )
    wanted = json.dumps({"do": "stop", "by": "penstock router stop-replay"}).encode()
    token = _token(job.actions_token_file)
    try:
        posted = ask_admin(
            job.admin, PATH, job.admin_access, timeout_s=_TIMEOUT_S, posted=(wanted, token)
        )
    except AdminStatusError as error:
        answer = error.response
        said = answer.body.decode(errors="replace")
        raise UnavailableError(
            f"the job at {job.admin} does not stop a replay: {answer.status} {said}",
            fix="`penstock router status` shows what is under way",
        ) from None
    except OSError as error:
        raise not_running(job, error) from None
    click.echo(_done(posted, job.admin))


def _token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        why = str(error.strerror)
    except UnicodeDecodeError:  # which would show some of it
        why = "it is no text in UTF-8"
    else:
        if token and token.isprintable():
            return token
        why = "one line is expected"
    raise WrongKeyError(
        f"actions_token_file: {path}: {why}",
        fix="name a file that this user may read, or run this as the job's user",
    )


def _done(posted: bytes, address: str) -> str:
    try:
        return str(json.loads(posted)["done"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UnavailableError(
            f"what answers at {address} is no router", fix="correct the job's key `admin`"
        ) from None


def _require_sink(job: JobConfig, name: str) -> None:
    if name not in job.sinks:
        raise click.UsageError(f"the job has no sink {name!r}, only {', '.join(job.sinks)}")


def _dead_letters(
    job: JobConfig, sink: str | None, names: tuple[str, ...] = (), *, done: bool = False
) -> list[DeadLetterFile]:
    """Return the files of dead letters; the sink may have been removed from the job since."""
    files = find_dead_letters(job.dead_letters, sink=sink, names=names, done=done)
    if sink is not None and not find_dead_letters(job.dead_letters, sink=sink, done=True):
        _require_sink(job, sink)
    return files
