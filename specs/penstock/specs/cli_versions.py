"""`penstock specs check`, `publish`, `diff`, `new`, `contract`: versions and what they promise."""

import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from penstock.base.errors import ExitCode
from penstock.specs import registry
from penstock.specs.check import UNPUBLISHED, check, unpublished, upcasts
from penstock.specs.contracts import View
from penstock.specs.discovery import discover
from penstock.specs.envelope import Record
from penstock.specs.errors import SpecError
from penstock.specs.evolution import NEW_READERS, OLD_READERS, unreadable
from penstock.specs.schema_export import json_schema
from penstock.specs.versions import BASE_NAMES, SchemaName, specs

_OWN: Final = "penstock.specs"
_TEMPLATE: Final = '''\
"""Telemetry specs of {namespace}."""

from typing import Annotated, Literal

from penstock.specs import {base}, Sensitive


class {name}({base}, spec="{spec}"):
    """What happened, in one sentence."""

    order_id: str
    outcome: Literal["ok", "refused"] | str
    customer: Annotated[str | None, Sensitive("pseudonym")] = None
'''

registry_option = click.option(
    "--registry",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("specs/registry"),
    show_default=True,
    help="Where published versions are.",
)
module_option = click.option(
    "--module",
    "modules",
    multiple=True,
    help="Check the specs that this module defines; else all found by entry point. Repeatable.",
)


@click.command("check", epilog="Example: penstock specs check --module shop.telemetry")
@registry_option
@module_option
@click.option("--against", metavar="REVISION", help="Also refuse edits of files published there.")
def check_command(directory: Path, modules: Sequence[str], against: str | None) -> None:
    """Compare specs with their published versions; exit code 65 when a change breaks someone.

    Prints the field, the rule, who breaks and what to do.
    """
    models = _models(modules)
    with errors_shown():
        found = check(models, registry.read(directory), registry.contracts(directory))
        edited = registry.changed_since(directory, against) if against else []
    for finding in found:
        click.echo(str(finding))
    for name in edited:
        click.echo(f"{name}: published: changed since {against}\n    fix: restore the file")
    count = len(found) + len(edited)
    click.echo(f"{_counted(len(models), 'spec')}, {_counted(count, 'finding')}", err=True)
    if count:
        sys.exit(ExitCode.DATA)


@click.command(epilog="Example: penstock specs publish --module shop.telemetry")
@registry_option
@module_option
def publish(directory: Path, modules: Sequence[str]) -> None:
    """Write the snapshots of versions that have none: JSON Schema and golden records; commit them.

    Exit code 65, and nothing written, when `check` has another finding.
    """
    models = _models(modules)
    with errors_shown():
        published = registry.read(directory)
        found = check(models, published, registry.contracts(directory))
        for finding in (other := [f for f in found if f.rule != UNPUBLISHED]):
            click.echo(str(finding))
        if other:
            sys.exit(ExitCode.DATA)
        for spec, (schema, golden) in unpublished(models, published).items():
            registry.write(directory, spec, schema, golden)
            click.echo(f"published {spec}")
        for spec, records in upcasts(models, registry.read(directory)).items():
            registry.write_upcast(directory, spec, records)
            click.echo(f"upcast {spec}")


@click.command(epilog="Example: penstock specs diff shop.order_placed/1.0 shop.order_placed/1.1")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@registry_option
@module_option
def diff(before: str, after: str, directory: Path, modules: Sequence[str]) -> None:
    """Say what records of A a reader of B cannot read, and the other way round.

    A and B are schema ids, of the registry or defined here, or files of JSON Schema.
    """
    with errors_shown():
        published = registry.read(directory)
        known = {id_: each.schema for id_, each in published.items()}
        models = {spec: json_schema(model) for spec, model in all_specs(modules).items()}
        old, new = (_schema(name, {**models, **known}) for name in (before, after))
    breaks = [(OLD_READERS, each) for each in unreadable(new, old)]
    breaks += [(NEW_READERS, each) for each in unreadable(old, new)]
    for who, each in breaks:
        click.echo(f"{each.field}: {each.rule}: {who} break: {each.detail}")
    click.echo("incompatible" if breaks else "fully compatible", err=True)
    if breaks:
        sys.exit(ExitCode.DATA)


@click.command(epilog="Example: penstock specs new shop.order_placed > shop/telemetry.py")
@click.argument("name")
@click.option("--kind", type=click.Choice(["event", "audit"]), default="event")
def new(name: str, kind: str) -> None:
    """Print a module with a spec to begin with."""
    with errors_shown():
        schema = SchemaName.parse(f"{name}/1.0")
    if schema.name in BASE_NAMES or "." not in schema.name:
        raise click.BadParameter("a name is namespace.name", param_hint="NAME")
    title = "".join(word.title() for word in schema.name.rpartition(".")[2].split("_"))
    text = _TEMPLATE.format(
        namespace=schema.name.rpartition(".")[0], base=kind.title(), name=title, spec=f"{name}/1.0"
    )
    click.echo(text, nl=False)


@click.command(
    epilog="Example: penstock specs contract billing.views:Billing billing > "
    "specs/registry/contracts/billing.json"
)
@click.argument("view", metavar="MODULE:CLASS")
@click.argument("consumer")
def contract(view: str, consumer: str) -> None:
    """Print a consumer's needs, for the producer's registry."""
    module, _, name = view.partition(":")
    found = getattr(_imported(module), name, None)
    if not (isinstance(found, type) and issubclass(found, View)):
        raise click.BadParameter(f"{view} is no View", param_hint="MODULE:CLASS")
    click.echo(json.dumps(found.contract(consumer), indent=1, sort_keys=True))


def _models(modules: Sequence[str]) -> dict[str, type[Record]]:
    """The specs to check: those of the modules named, else all but Penstock's own."""
    found = all_specs(modules)
    if modules:
        return {s: m for s, m in found.items() if m.__module__.startswith(tuple(modules))}
    return {s: m for s, m in found.items() if not m.__module__.startswith(f"{_OWN}.")}


def all_specs(modules: Sequence[str]) -> Mapping[str, type[Record]]:
    """Every spec that is known here, those of the modules and of entry points included."""
    for name, failure in discover().items():
        click.echo(f"entry point {name} cannot be loaded: {failure}", err=True)
    for module in modules:
        _imported(module)
    return specs()


def _imported(module: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the project that is being checked
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise click.BadParameter(str(error), param_hint="MODULE") from None


def _schema(name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    try:
        return json.loads(Path(name).read_bytes())
    except (OSError, ValueError):
        raise SpecError(f"{name} is no known spec and no file of JSON Schema") from None


@contextmanager
def errors_shown() -> Iterator[None]:
    """Errors of specs end the command with their message."""
    try:
        yield
    except (SpecError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(ExitCode.DATA)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
