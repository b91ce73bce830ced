"""`penstock router`: run a job, check it, look at it."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from penstock.router.config import JobConfig
from penstock.service import check_only, configure_logs, load_config, run_until_stopped
from penstock.service.command import PenstockGroup, check_option, config_option
from penstock.service.options import option_lines

POLL_S = 0.5


@click.group(
    cls=PenstockGroup,
    invoke_without_command=True,
    epilog="Example: penstock router --config job.yaml --until-caught-up",
)
@config_option
@check_option
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="Stop once every sink has all that the log held at the start; exit 69 when one gets"
    " nothing for source.retry_timeout_s.",
)
@click.pass_context
def cli(
    context: click.Context, config_path: Path | None, *, check: bool, until_caught_up: bool
) -> None:
    """Run a router job: read streams of the log, route the records, feed the sinks."""
    if context.invoked_subcommand is not None:
        return
    if config_path is None:
        raise click.UsageError("name a job with --config FILE, or a subcommand")
    config = load_job(config_path)
    if check:
        check_expressions(config)
        click.echo(check_only(config, config_path), nl=False)
        return
    configure_logs("router")
    _run(config, until_caught_up=until_caught_up)


@cli.command(epilog="Example: penstock router plan job.yaml")
@click.argument("job", type=click.Path(path_type=Path, dir_okay=False))
def plan(job: Path) -> None:
    """Show a job's streams, routes, sinks and columns."""
    from penstock.router.plan import picture

    click.echo(picture(load_job(job)))


@cli.command(epilog="Example: penstock router sinks")
@click.option("--markdown", is_flag=True, help="Print the table of guarantees in router/README.md.")
def sinks(*, markdown: bool) -> None:
    """List the types of sinks, what they guarantee, and their options."""
    from penstock.router.sinks.table import guarantees, sink_kinds

    if markdown:
        click.echo("\n".join(guarantees()))
        return
    for kind in sink_kinds():
        first, *options = option_lines(kind.config)
        click.echo(first if kind.package == "penstock" else f"{first} (package {kind.package})")
        click.echo(f"    on replay: {kind.sink.guarantee}")
        for line in options:
            click.echo(line)


def load_job(path: Path) -> JobConfig:
    """Read a job file.

    Raises:
        ConfigError: It is not a valid job.
    """
    return load_config(JobConfig, path, env_prefix="PENSTOCK_ROUTER")


def check_expressions(config: JobConfig) -> None:
    """Let Spark analyse the job's conditions; starts Spark only if there are any.

    Raises:
        ConfigError: One is not valid.
    """
    if all(route.where is None for route in config.routes):
        return
    from penstock.router.routes import check_routes
    from penstock.router.session import Session

    with TemporaryDirectory(prefix="penstock-router-") as directory:
        session = Session.start(config.job, config.spark, Path(directory))
        try:
            check_routes(config, session.spark)
        finally:
            session.close()


def _run(config: JobConfig, *, until_caught_up: bool) -> None:
    from penstock.router.job import Job

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
