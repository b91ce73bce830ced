"""`penstock specs`: look at specs, and validate records by them."""

import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
from typing_extensions import override

from penstock.base.errors import ExitCode
from penstock.base.pluralize import pluralize
from penstock.specs.errors import SpecError, UnknownSpecError
from penstock.specs.formats import schemas
from penstock.specs.formats.schemas import fields as columns
from penstock.specs.formats.schemas import json_schema
from penstock.specs.models.envelope import BASE_NAMES, Record, SchemaName, model_for, specs
from penstock.specs.models.kinds import BASE_MODELS, discover
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Rejected
from penstock.specs.versions import registry
from penstock.specs.versions.check import UNPUBLISHED, check, unpublished, upcasts
from penstock.specs.versions.compat import NEW_READERS, OLD_READERS, View, unreadable

_OWN: Final = "penstock.specs"
_PATH_FIX: Final = "name a path that is there and that this user may use"
_NO_SPECS: Final = (
    "there is no spec to look at: name its module with --module, or install the package whose entry"
    " point in the group penstock.specs names it"
)
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
    help="Look at the specs that this module defines; else all found by entry point. Repeatable.",
)


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


@cli.command("check", epilog="Example: penstock specs check --module shop.telemetry")
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
        if not models and not found:  # else nobody would see that the specs were not found
            raise SpecError(_NO_SPECS)
        edited = registry.changed_since(directory, against) if against else []
    for finding in found:
        click.echo(str(finding))
    for name in edited:
        click.echo(f"{name}: published: changed since {against}\n    fix: restore the file")
    count = len(found) + len(edited)
    click.echo(f"{pluralize(len(models), 'spec')}, {pluralize(count, 'finding')}", err=True)
    if count:
        sys.exit(ExitCode.DATA)


@cli.command(epilog="Example: penstock specs publish --module shop.telemetry")
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
        if not models and not found:
            raise SpecError(_NO_SPECS)
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


@cli.command(epilog="Example: penstock specs diff shop.order_placed/1.0 shop.order_placed/1.1")
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


@cli.command(epilog="Example: penstock specs new shop.order_placed > shop/telemetry.py")
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(["event", "audit"]), default="event",
    show_default=True, help="What the spec is of.",
)  # fmt: skip
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


@cli.command(
    epilog="\b\nExample:\n  penstock specs contract billing.views:Billing billing \\\n"
    "    > specs/registry/contracts/billing.json"
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
    except Exception as error:  # noqa: BLE001 - it is not our module, and may do anything
        what = f"{module} cannot be imported: {type(error).__name__}: {error}"
        raise click.BadParameter(what, param_hint="MODULE") from None


def _schema(name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    try:
        return json.loads(Path(name).read_bytes())
    except (OSError, ValueError):
        raise SpecError(
            f"{name} is no known spec and no file of JSON Schema; known: {', '.join(sorted(known))}"
        ) from None


@contextmanager
def errors_shown() -> Iterator[None]:
    """Errors of specs end the command with their message."""
    try:
        yield
    except SpecError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(ExitCode.DATA)
    except OSError as error:
        click.echo(f"error: {error.filename}: {error.strerror}\n  fix: {_PATH_FIX}", err=True)
        sys.exit(ExitCode.IO)


Models = list[type[Record]]


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _one(write: Callable[[type[Record]], bytes]) -> Callable[[Models], bytes]:
    """Make a writer of one spec for formats of which a file holds one."""

    def write_one(models: Models) -> bytes:
        if len(models) != 1:
            raise click.UsageError("this format takes one SPEC at a time")
        return write(models[0])

    return write_one


def _weaver(models: Models) -> bytes:
    import yaml

    return bytes(
        yaml.safe_dump(schemas.weaver(models), sort_keys=False, allow_unicode=True), "utf-8"
    )


def _markdown(models: Models) -> bytes:
    return "\n".join(schemas.markdown(model) for model in models).encode()


FORMATS: Final[dict[str, Callable[[Models], bytes]]] = {
    "json-schema": _one(lambda model: _json(json_schema(model))),
    "weaver": _weaver,
    "markdown": _markdown,
    "spark": _one(lambda model: _json(schemas.spark(model))),
    "arrow": _one(lambda model: schemas.arrow(model).serialize().to_pybytes()),
}


@cli.command(
    epilog="\b\nExample:\n"
    "  penstock specs export markdown shop.order_placed/1.0 --module shop.telemetry"
)
@click.argument("form", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("wanted", metavar="SPEC...", nargs=-1, required=True)
@module_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Else to stdout.")
def export(form: str, wanted: Sequence[str], modules: Sequence[str], out: Path | None) -> None:
    """Write specs as json-schema, weaver (YAML), markdown, spark (StructType as JSON) or arrow.

    An Arrow schema is written as its IPC message, as `pyarrow.ipc.read_schema` takes it.
    """
    known = all_specs(modules)
    with errors_shown():
        for spec in wanted:
            if spec not in known:
                raise UnknownSpecError(spec, ", ".join(known))
        text = FORMATS[form]([known[spec] for spec in wanted])
        if out is not None:
            out.write_bytes(text)
            return
    click.echo(text, nl=False)


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
    """Validate each line of FILE (- is standard input); exit code 65 when one is not a record.

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
