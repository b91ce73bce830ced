"""`penstock specs export`: specs in the forms that others read."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from penstock.specs import exports
from penstock.specs.cli_versions import all_specs, errors_shown, module_option
from penstock.specs.envelope import Record
from penstock.specs.errors import UnknownSpecError
from penstock.specs.schema_export import json_schema

Models = list[type[Record]]


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def _one(write: Callable[[type[Record]], bytes]) -> Callable[[Models], bytes]:
    """For formats of which a file holds one spec."""

    def write_one(models: Models) -> bytes:
        if len(models) != 1:
            raise click.UsageError("this format takes one SPEC at a time")
        return write(models[0])

    return write_one


def _weaver(models: Models) -> bytes:
    import yaml

    return bytes(
        yaml.safe_dump(exports.weaver(models), sort_keys=False, allow_unicode=True), "utf-8"
    )


def _markdown(models: Models) -> bytes:
    return "\n".join(exports.markdown(model) for model in models).encode()


FORMATS: Final[dict[str, Callable[[Models], bytes]]] = {
    "json-schema": _one(lambda model: _json(json_schema(model))),
    "weaver": _weaver,
    "markdown": _markdown,
    "spark": _one(lambda model: _json(exports.spark(model))),
    "arrow": _one(lambda model: exports.arrow(model).serialize().to_pybytes()),
}


@click.command(
    epilog="Example: penstock specs export markdown shop.order_placed/1.0 --module shop.telemetry"
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
