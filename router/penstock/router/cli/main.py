"""`penstock router`: run a job, check it, look at it."""

import platform
import shlex
import sys
from pathlib import Path

import click

from penstock.base.pluralize import pluralize
from penstock.router.cli.inspect import plan, preview, sinks, status, template
from penstock.router.cli.job import (
    check_expressions,
    check_libraries,
    job_argument,
    load_job,
    quiet_option,
    run_job,
    steps_without_match,
    teller,
)
from penstock.router.cli.replay import dlq, replay, stop_replay
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import naming
from penstock.router.job.permissions import unreadable
from penstock.service import check_only
from penstock.service.cli import PenstockGroup, check_option, config_option

_UNTIL = click.option(
    "--until-caught-up",
    is_flag=True,
    help="Stop once every sink has all that the log held at the start; exit 69 when one gets"
    " nothing for source.retry_timeout_s.",
)


@click.group(
    cls=PenstockGroup,
    invoke_without_command=True,
    epilog="Example: penstock router --config job.yaml --until-caught-up",
)
@config_option
@check_option
@_UNTIL
@click.pass_context
def cli(
    context: click.Context, config_path: Path | None, *, check: bool, until_caught_up: bool
) -> None:
    """Run a router job: read streams of the log, route the records, feed the sinks."""
    if context.invoked_subcommand is not None:
        return
    if config_path is None:
        raise click.UsageError("name a job with --config FILE, or a subcommand")
    with naming(config_path):
        config = load_job(config_path)
        if not check:
            run_job(config, until_caught_up=until_caught_up)
            return
        check_libraries(config)
        check_expressions(config, teller())
    click.echo(check_only(config, config_path), nl=False)
    _tell_notes(config)


def _tell_notes(config: JobConfig) -> None:
    """Print notes on a job that is valid and may still not be what its author meant."""
    for told in steps_without_match(config):
        click.echo(f"but {told}; this step changes nothing there", err=True)
    for told in unreadable(config):
        click.echo(f"but {told}; until this user may read it, it is waited for", err=True)


@cli.command(epilog="Example: penstock router run job.yaml --master spark://10.0.0.5:7077")
@job_argument
@_UNTIL
@click.option("--master", metavar="URL", help="Spark's master, instead of the job's spark.master.")
def run(path: Path, *, until_caught_up: bool, master: str | None) -> None:
    """Run a job until SIGTERM, as `--config` does."""
    config = load_job(path)
    if master is not None:
        config = config.on_master(master)
    run_job(config, until_caught_up=until_caught_up)


@cli.command(epilog="Example: penstock router validate job.yaml")
@job_argument
@quiet_option
def validate(path: Path, *, quiet: bool) -> None:
    """Check a job, its conditions, key files and libraries; exit 78 when something is wrong."""
    config = load_job(path)
    check_libraries(config)
    check_expressions(config, teller(quiet=quiet))
    routes, sinks_ = pluralize(len(config.routes), "route"), pluralize(len(config.sinks), "sink")
    click.echo(f"{path} is valid: {routes}, {sinks_}")
    _tell_notes(config)


@cli.command(epilog="Example: penstock router prepare")
@quiet_option
def prepare(*, quiet: bool) -> None:
    """Make Spark start in half the time from now on, for all jobs of this Python environment.

    The command archives the classes that Spark loads, which takes about 20 s and 160 MB. Run it
    again after an upgrade of Java or of pyspark: Spark does not use an archive of other versions.
    """
    from penstock.router.spark.class_archive import make_archive

    click.echo(f"{make_archive(teller(quiet=quiet))}: jobs that start from now on use it")


@cli.command(epilog="Example: penstock router package --out penstock-packages.tar.gz")
@click.option(
    "--out",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("penstock-packages.tar.gz"),
    show_default=True,
    help="The archive; ends with .tar.gz.",
)
@click.option(
    "--extra",
    "extras",
    metavar="NAME",
    multiple=True,
    help="Pack the libraries of this extra of Penstock, and of no other but those named; by"
    " default those of all sinks that are installed.",
)
def package(path: Path, extras: tuple[str, ...]) -> None:
    """Pack Penstock and its libraries for the executors of a Spark cluster.

    Name the archive in a job file as spark.package. Executors need a Python of the same minor
    version on the same kind of machine, and nothing else of Penstock. For a program of your own the
    command prints the options of spark-submit that do the same.
    """
    from penstock.router.spark.package import make_package, submit_options

    made = make_package(path, extras) if extras else make_package(path)
    packages = pluralize(len(made.distributions), "package")
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    click.echo(
        f"{made.path}: {packages}, {made.size / 1e6:.0f} MB, for {python} on {platform.machine()}"
    )
    click.echo(f"spark-submit {shlex.join(submit_options(made.path))} PROGRAM.py")


for command in (plan, preview, replay, stop_replay, status, sinks, template, dlq):
    cli.add_command(command)
