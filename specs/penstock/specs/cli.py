"""`penstock specs`: look at specs, and judge records by them."""

import json
import sys
from collections import Counter
from typing import BinaryIO, Final

import click
from typing_extensions import override

from penstock.base.errors import ExitCode
from penstock.specs import cli_versions
from penstock.specs.cli_export import export
from penstock.specs.columns import fields as columns
from penstock.specs.discovery import discover
from penstock.specs.errors import UnknownSpecError
from penstock.specs.gate import Rejected, check_line
from penstock.specs.kinds import BASE_MODELS
from penstock.specs.schema_export import json_schema
from penstock.specs.versions import model_for, specs

_SENTENCE_MAX: Final = 1000


class _Group(click.Group):
    """One whose help cuts no sentence off, as of all groups of Penstock."""

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, found.get_short_help_str(_SENTENCE_MAX)) for name, found in known if found]
            )


@click.group(cls=_Group, name="specs", epilog="Example: penstock specs validate records.ndjson")
def cli() -> None:
    """Telemetry specs: list and export them, validate records, check what a change breaks."""
    discover()


for _command in (
    cli_versions.check_command,
    cli_versions.publish,
    cli_versions.diff,
    cli_versions.new,
    cli_versions.contract,
    export,
):
    cli.add_command(_command)


@cli.command("list", epilog="Example: penstock specs list")
def list_specs() -> None:
    """List all known specs."""
    for spec, model in specs().items():
        summary = (model.__doc__ or "").strip().partition("\n")[0]
        click.echo(f"{spec:24} {model.model_fields['kind'].default:8} {summary}")


@cli.command(epilog="Example: penstock specs validate - < records.ndjson")
@click.argument("file", type=click.File("rb"))
@click.option("--quiet", is_flag=True, help="Only the summary.")
def validate(file: BinaryIO, *, quiet: bool) -> None:
    """Judge each line of FILE (- is standard input); exit code 65 when one is not a record.

    Prints the line's number and verdict: its spec and service, or why it is refused.
    """
    verdicts: Counter[str] = Counter()
    for number, line in enumerate(file, start=1):
        verdict = check_line(line.rstrip(b"\r\n"))
        if isinstance(verdict, Rejected):
            verdicts["refused"] += 1
            text = f"refused: {verdict.reason}" + (f" ({verdict.detail})" if verdict.detail else "")
        else:
            verdicts["accepted"] += 1
            text = f"accepted: {verdict.schema} {verdict.service}"
        if not quiet:
            click.echo(f"{number}: {text}")
    click.echo(f"{verdicts['accepted']} accepted, {verdicts['refused']} refused", err=True)
    if verdicts["refused"]:
        sys.exit(ExitCode.DATA)


@cli.command(epilog="Example: penstock specs schema log/1.0")
@click.argument("spec", metavar="NAME/VERSION")
def schema(spec: str) -> None:
    """Print a spec as JSON Schema."""
    try:
        model = model_for(spec)
    except UnknownSpecError as error:
        raise click.BadParameter(str(error), param_hint="NAME/VERSION") from None
    click.echo(json.dumps(json_schema(model), indent=2))


@cli.command(epilog="Example: penstock specs fields metric")
@click.argument("kind", type=click.Choice(list(BASE_MODELS)))
def fields(kind: str) -> None:
    """Print the columns of a kind: name, type and where the value lies in a record."""
    for column in columns(kind):
        need = "required" if column.required else ""
        click.echo(
            f"{column.name:28} {column.type:20} {' > '.join(column.path):44} {need}".rstrip()
        )
