"""`penstock logd streams create` and `alter`: the options of a stream on the command line."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from penstock.logd.cli.output import (
    json_option,
    tell,
)
from penstock.logd.cli.server import (
    asking,
    server_option,
    stream_argument,
)
from penstock.logd.metadata.option import Change
from penstock.logd.stream_options import StreamOption, stream_options
from penstock.service.cli import IntRange

Function = TypeVar("Function", bound=Callable[..., Any])


class _FactorType(click.ParamType[Any]):
    """A number of replicas, or all nodes."""

    name = "integer or all"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "all":
            return value
        return IntRange(min=1).convert(value, param, ctx)


def _click_option(option: StreamOption) -> Callable[[Function], Function]:
    """A stream's option as one of a command; without it the daemon decides."""
    name, kind = option.parameter, option.kind
    text = option.option.meaning.replace("`", "")
    if kind is bool:
        return click.option(f"--{name}/--no-{name}", default=None, help=text)
    if kind is int:
        number = _FactorType() if option.choices else click.INT
        return click.option(f"--{name}", type=number, help=text)
    return click.option(
        f"--{name}", type=click.Choice(option.choices) if option.choices else str, help=text
    )


_NAMES: Final = {option.name: option for option in stream_options()}


def _options_of(*changes: Change) -> Callable[[Function], Function]:
    """Add the options that are set so; a stream's name and subject are arguments of a command."""
    chosen = [
        option
        for name, option in _NAMES.items()
        if option.option.change in changes and name not in ("name", "subject")
    ]

    def decorate(function: Function) -> Function:
        for option in reversed(chosen):
            function = _click_option(option)(function)
        return function

    return decorate


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of their parameters, as the api takes them: `retention` is one key."""
    found: dict[str, Any] = {}
    for option in _NAMES.values():
        parameter = option.parameter.replace("-", "_")
        if parameter in options:
            outer, _, inner = option.name.partition(".")
            if inner:
                found.setdefault(outer, {})[inner] = options[parameter]
            else:
                found[outer] = options[parameter]
    return found


def chosen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given."""
    return _nested({name: value for name, value in options.items() if value is not None})


def unset_options(names: tuple[str, ...]) -> dict[str, Any]:
    """Options that are to be none, by the names they have on the command line.

    Raises:
        click.UsageError: There is no such option.
    """
    wanted = {name.removeprefix("--").replace("-", "_"): None for name in names}
    known = {option.parameter.replace("-", "_") for option in _NAMES.values()}
    if unknown := sorted(wanted.keys() - known):
        raise click.UsageError(f"--unset {unknown[0].replace('_', '-')}: there is no such option")
    return _nested(wanted)


@click.command(epilog="Example: penstock logd streams create logs --subject 'telemetry.logs.>'")
@click.argument("name")
@click.option("--subject", required=True, help="Subject or filter, with * and >, to store.")
@_options_of(Change.ALTER, Change.CREATE)
@json_option()
@server_option
def create(name: str, subject: str, as_json: bool, server: str, **options: Any) -> None:
    """Create a stream NAME; the same again changes nothing.

    Partition 0 stores the subject itself, partition n what is published on the subject with .n
    behind it.
    """
    with asking(server) as log:
        stream = log.create_stream(name, subject, **chosen_options(options))
    done: dict[str, Any] = {"stream": stream.name, "subject": stream.subject}
    done |= {"incarnation": stream.incarnation, "partitions": len(stream.partitions)}
    tell(f"stream {stream.name} stores {stream.subject}", done, as_json=as_json)


@click.command(
    epilog="\b\nExample:\n  penstock logd streams alter logs --retention-age-s 86400 --min-isr 2"
)
@stream_argument("name")
@_options_of(Change.ALTER)
@click.option(
    "--unset", multiple=True, metavar="OPTION", help="Set this option to none; repeatable."
)
@click.option(
    "--end-restore",
    is_flag=True,
    help="Accept publishers for good, though a part of its backup is missing.",
)
@json_option()
@server_option
def alter(
    *,
    name: str,
    unset: tuple[str, ...],
    end_restore: bool,
    as_json: bool,
    server: str,
    **options: Any,
) -> None:
    """Change options of the stream NAME; the others stay as they are.

    More replicas, or fewer, are made in the background. A node without the section `cluster` takes
    the options of its configuration's file again when it is started.
    """
    changes, none = chosen_options(options), unset_options(unset)
    retention = changes.get("retention", {}) | none.get("retention", {})
    changes |= none | ({"retention": retention} if retention else {})
    changes |= {"restore_upto": None} if end_restore else {}
    if not changes:
        raise click.UsageError("name an option to change")
    with asking(server) as log:
        log.alter_stream(name, **changes)
    words = f"stream {name} is changed: {', '.join(sorted(changes))}"
    tell(words, {"stream": name, "changed": changes}, as_json=as_json)
