"""A job file as commands take it, and running the job."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from penstock.base.clock import SystemClock
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import naming
from penstock.router.meter import Meter
from penstock.router.replay.progress import Report, silent
from penstock.router.sinks import SinkContext, make_sink
from penstock.router.spark.submitted import is_submitted, with_submitted
from penstock.service import UnavailableError, configure_logs, load_config, run_until_stopped

POLL_S: Final = 0.5

_ARGUMENT: Final[Callable[[Any], Any]] = click.argument(
    "path", metavar="JOB", type=click.Path(path_type=Path, dir_okay=False)
)


def job_argument(command: Callable[..., None]) -> Any:
    """Give a command the argument JOB, as `path`; what is wrong in that file is told with it."""

    @wraps(command)
    def with_job(*given: Any, path: Path, **options: Any) -> None:
        with naming(path):
            command(*given, path=path, **options)

    return _ARGUMENT(with_job)


quiet_option: Final[Callable[[Any], Any]] = click.option(
    "--quiet", is_flag=True, help="Do not say what is being done."
)


def teller(*, quiet: bool = False) -> Report:
    """Takes a line of what is being done, for people: on standard error, or nowhere."""
    return silent if quiet else partial(click.echo, err=True)


def load_job(path: Path) -> JobConfig:
    """Read a job file; under `spark-submit` with the settings of Spark that it was given.

    Raises:
        ConfigError: It is not a valid job.
    """
    config = load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER")
    return config.on_spark(with_submitted(config.spark)) if is_submitted() else config


def check_libraries(config: JobConfig) -> None:
    """Make each sink, which reads and opens nothing: what it needs must be installed.

    Raises:
        WrongKeyError: A library is not; names the extra that brings it.
    """
    for name, settings in config.sinks.items():
        context = SinkContext(
            job=config.job,
            sink=name,
            stream_ids={},
            state_dir=config.checkpoint_dir / name,
            dead_letters=config.dead_letters,
            meter=Meter(),
            stop=threading.Event(),
            clock=SystemClock(),
        )
        make_sink(settings, context)


def check_expressions(config: JobConfig, tell: Report = silent) -> None:
    """Let Spark analyse the job's conditions, if there are any, and look at the key files.

    Raises:
        WrongKeyError: One is not valid.
    """
    from penstock.router.transforms import Chain

    for name in config.sinks:
        for index, steps in config.transforms_to(name).items():
            Chain(steps, Path(), key_path=f"{config.route_key(index)}.transforms")
    statements = [steps for name in config.sinks for steps in config.transforms_to(name).values()]
    has_sql = any(step.sql is not None for steps in statements for step in steps)
    if all(route.where is None for route in config.routes) and not has_sql:
        return
    from penstock.router.job.routes import check_routes
    from penstock.router.spark.session import Session

    tell("starts Spark to check conditions of routes, which takes some seconds …")
    with TemporaryDirectory(prefix="penstock-router-") as directory:
        session = Session.start(config.job, config.session, Path(directory))
        conditions = sum(route.where is not None for route in config.routes)
        tell(f"Spark runs; checks conditions: {conditions} …")
        try:
            check_routes(config, session.spark)
        finally:
            session.close()


def steps_without_match(config: JobConfig) -> list[str]:
    """Names in transforms that no record of a route has, by the specs; each with its place."""
    from penstock.router.job.routes import kinds_of
    from penstock.router.transforms import without_match

    found = []
    chains = [(route.where, route.transforms) for route in config.routes]
    for index, (where, steps) in enumerate([*chains, (None, config.unmatched.transforms)]):
        place = f"{config.route_key(index)}.transforms"
        found += [f"{place}.{step}.{why}" for step, why in without_match(steps, kinds_of(where))]
    return found


def not_running(config: JobConfig, error: OSError) -> UnavailableError:
    """Return the error for a command whose running job does not answer."""
    name, address = repr(config.job), config.admin
    if isinstance(error, ConnectionRefusedError):
        told = f"the job {name} does not run: nothing listens at {address}"
    else:
        told = f"the job {name} cannot be reached at {address}: {error.strerror or error}"
    return UnavailableError(
        told, fix="start it with `penstock router run`; if it runs, correct its key `admin`"
    )


def run_job(config: JobConfig, *, until_caught_up: bool) -> None:
    """Run a job until it is told to stop, or has caught up."""
    from penstock.router.job.job import Job

    configure_logs("router")
    if until_caught_up:
        config = config.without_waiting()

    async def main(stop: asyncio.Event) -> None:
        job = Job(config)
        try:
            await asyncio.to_thread(job.start, stop.is_set)
            stuck = None
            while not stop.is_set() and not (until_caught_up and job.has_caught_up()):
                if until_caught_up and (stuck := job.stuck()) is not None:
                    break
                await asyncio.to_thread(job.poll)
                await _wait(stop, POLL_S)
            await asyncio.to_thread(job.drain)
            if stuck is not None:
                raise stuck
        finally:
            await asyncio.to_thread(job.close)

    run_until_stopped(main)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
