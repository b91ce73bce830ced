"""How the commands reach a running logd, and NATS, and what they say when it is not as asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.base.errors import DamagedDataError
from penstock.logd.backup import FILE_BYTES
from penstock.logd.cli.advice import advice
from penstock.logd.cli.text import safe
from penstock.logd.client import Access, LogClient
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    RefusedError,
    UnavailableError,
)
from penstock.service import ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_SERVER: Final = "127.0.0.1:9293"

COMPLETION_S: Final = 1.0
"""Seconds that completion may take."""

_GIVEN: Final = "penstock.logd.access"

_FOR_NOW: Final = frozenset(
    {"UNAVAILABLE", "NOT_READY", "NOT_HERE", "TOO_MANY_CONNECTIONS", "TOO_MANY_REQUESTS"}
)
"""Refusals that pass: asking again later can succeed."""


class AskRefusedError(ServiceError):
    """The daemon will not do what was asked (exit code 1)."""


def server_option(function: Function) -> Function:
    """Add `--server HOST:PORT,...`, and how to be let in there: `asking` finds that by itself."""
    return _server_option(function, _ACCESS)


def server_option_beside_a_key(function: Function) -> Function:
    """`server_option` of a command whose `--key` is that of a record: there it is `--tls-key`."""
    return _server_option(function, _BESIDE_A_KEY)


def _server_option(function: Function, access_options: Sequence[Any]) -> Function:
    for option in reversed(access_options):
        function = option(function)
    return click.option(
        "--server",
        envvar="PENSTOCK_LOGD_SERVER",
        default=DEFAULT_SERVER,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="The fetch endpoint of a running logd, or of some nodes of a cluster.",
    )(function)


def stream_argument(name: str = "stream", **options: Any) -> Callable[[Function], Function]:
    """Add the name of a stream, which shells complete with what there is."""
    return click.argument(name, shell_complete=_complete_stream, **options)


def _complete_stream(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Streams that the caller sees; none when logd does not say at once, for a shell waits."""
    try:
        server = str(context.params.get("server") or DEFAULT_SERVER)
        given = context.meta.get(_GIVEN, {})
        make = clients(context).log or LogClient
        with make(server, timeout_s=COMPLETION_S, access=Access(**given)) as log:
            names = [stream.name for stream in log.streams()]
    except (LogdError, ValueError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep an option of access for `asking`."""
    assert parameter.name is not None
    context.meta.setdefault(_GIVEN, {})[parameter.name] = value


def _access_option(name: str, parameter: str, variable: str, text: str) -> Any:
    return click.option(
        name,
        parameter,
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=f"PENSTOCK_LOGD_{variable}",
        show_envvar=True,
        metavar="FILE",
        expose_value=False,
        callback=_note,
        help=text,
    )


_ACCESS: Final = (
    _access_option("--token-file", "token_file", "TOKEN_FILE", "Token or API key to be known by."),
    click.option(
        "--tls",
        "tls",
        is_flag=True,
        envvar="PENSTOCK_LOGD_TLS",
        show_envvar=True,
        expose_value=False,
        callback=_note,
        help="Connect with TLS; so it is with the next two.",
    ),
    _access_option("--tls-ca", "ca_file", "TLS_CA", "Authority of logd's certificate, in PEM."),
    _access_option("--cert", "cert_file", "CERT", "Certificate to be known by, in PEM."),
    _access_option("--key", "key_file", "KEY", "Its key, if it is not in the same file."),
)
_BESIDE_A_KEY: Final = (
    *_ACCESS[:-1],
    _access_option("--tls-key", "key_file", "KEY", "Its key, if it is not in the same file."),
)


def access() -> Access:
    """How the command that runs is let in, as its options and the environment say.

    Raises:
        click.UsageError: They contradict themselves.
    """
    try:
        return Access(**click.get_current_context().meta.get(_GIVEN, {}))
    except ValueError as error:
        words = str(error).replace("key_file", "--key").replace("cert_file", "--cert")
        raise click.UsageError(words) from None


@dataclass(frozen=True, slots=True)
class Clients:
    """What commands work with; a program that runs them may give its own.

    It is the object of the command's context, as click has it.

    Attributes:
        log: Makes a client, as `LogClient`; None: what the command makes itself.
        publisher: Makes a publisher, as `BlockingPublisher`; None: that.
        file_bytes: Of the files of a backup, about.
    """

    log: Callable[..., Any] | None = None
    publisher: Callable[..., Any] | None = None
    file_bytes: int = FILE_BYTES


def clients(context: click.Context | None = None) -> Clients:
    """Those of the command that runs."""
    return (context or click.get_current_context()).find_object(Clients) or Clients()


@contextmanager
def asking(server: str, make: Callable[..., LogClient] | None = None) -> Iterator[LogClient]:
    """A client of a running daemon; its errors become messages with a fix, and exit codes.

    Args:
        server: Its addresses.
        make: Makes the client of a server and `access`; None: a plain one.
    """
    try:
        client = (clients().log or make or LogClient)(server, access=access())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    try:
        with client:
            yield client
    except RefusedError as error:
        raise refusal(error) from None
    except UnavailableError as error:
        raise ServiceUnavailableError(safe(str(error)), fix=advice(error)) from None
    except CorruptError as error:
        raise DamagedDataError(safe(str(error)), fix=advice(error)) from None


def refusal(error: RefusedError) -> ServiceError:
    """A refusal in the words of a command, with the exit code of its kind."""
    cause = error.detail.get("cause")
    message = f"{safe(str(error))} ({error.code}{f': {cause}' if cause else ''})"
    fix = advice(error)
    if "CORRUPT" in (error.code, cause):
        return DamagedDataError(message, fix=fix)
    if error.code in _FOR_NOW:
        return ServiceUnavailableError(message, fix=fix)
    return AskRefusedError(message, fix=fix)
