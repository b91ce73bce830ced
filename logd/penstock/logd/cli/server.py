"""How the commands reach a running logd, and NATS, and what they say when it is not as asked."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.logd.cli.text import safe
from penstock.logd.client import Access, LogClient
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    RefusedError,
    UnavailableError,
    UnsettledError,
)
from penstock.service import ExitCode, ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_SERVER: Final = "127.0.0.1:9293"

COMPLETION_S: Final = 1.0
"""Seconds that completion may take."""

_GIVEN: Final = "penstock.logd.access"
FIXES: Final[Mapping[str, str]] = {
    "UNAUTHENTICATED": "show who you are: --token-file FILE, or --cert FILE and --key FILE",
    "PLAIN_TOKEN": "connect with TLS: --tls, or --tls-ca FILE",
    "BAD_TOKEN_FILE": "name a file with a token or an API key in one line",
    "BAD_TLS_FILE": "name readable PEM files: --tls-ca, --cert, --key, for NATS --nats-ca, ...",
    "UNKNOWN_STREAM": "list the streams: penstock logd streams ls",
    "OUT_OF_RANGE": "ask for an offset in that range, or earliest or latest",
    "STREAM_DIFFERS": "use the same options, or delete the stream first",
    "STREAM_DELETING": "start those nodes, or drain and remove them: penstock logd cluster info",
    "UNAVAILABLE": "see the nodes, penstock logd cluster info, and their logs; then ask again",
    "RESERVED_NAME": "choose a name that does not begin with __",
    "CURSOR_BEHIND": "another consumer of that name has gone further; use another name",
    "GROUP_ACTIVE": "see who they are: penstock logd groups info NAME",
    "UNKNOWN_GROUP": "list those with members: penstock logd groups ls",
    "BAD_CONSUMER": "choose a name such as billing or team-a/billing",
    "STREAM_RECREATED": "ask again: the offsets are those of the stream that was",
    "UNKNOWN_PARTITION": "see which it has: penstock logd streams info NAME",
    "NOT_CLUSTERED": "ask a logd whose configuration has `cluster`",
    "UNKNOWN_NODE": "list the nodes: penstock logd cluster info",
    "NODE_REMOVED": "list the nodes: penstock logd cluster info",
    "NOT_ACTIVE": "choose other nodes, or: penstock logd cluster undrain NODE",
    "NOT_DRAINED": "penstock logd cluster drain NODE, and wait until it has no replicas",
    "HAS_LEADER": "nothing needs to be lost: it is led",
    "IN_SYNC_ALIVE": "wait a second: it is about to be led, and nothing is lost",
    "NO_REPLICA": "start one of these nodes",
    "NOT_ENOUGH_NODES": "ask for fewer replicas, or start more nodes",
    "NO_HEIR": "list the nodes: penstock logd cluster info",
    "BAD_SUBJECT": "choose a subject such as telemetry.logs.>",
    "READ_ONLY": "let it be written to: penstock logd streams writable NAME",
    "WRONG_STREAM": "see which streams store the subject: penstock logd match SUBJECT",
    "MESSAGE_TOO_LARGE": "publish less at a time, or raise the stream's message_bytes_max",
    "NATS_MAX_PAYLOAD": "publish less at a time, or raise max_payload of the NATS server",
    "STREAM_FULL": "see its limits: penstock logd streams info NAME",
    "NOT_ENOUGH_REPLICAS": "see which nodes are missing: penstock logd cluster info",
    "PERMISSION_DENIED": "ask whoever administers logd for that rule; see: penstock logd acl test",
    "QUOTA_EXCEEDED": "ask again later, or for more: penstock logd quotas ls",
    "STALE_VERSION": "somebody else was faster: see what there is now, and ask again",
    "UNKNOWN_RULE": "list the rules: penstock logd acl ls",
    "UNKNOWN_QUOTA": "list the quotas: penstock logd quotas ls",
    "BAD_RULE": "see what a rule may say: penstock logd acl --help",
    "NOT_RESTORING": "restore into a stream that is not there yet: --as NAME",
    "WRONG_OFFSET": "somebody else restores it, too; begin again, it goes on where it is",
    "BAD_BACKUP": "make another backup: these are not the frames of one",
    "BUSY": "publish more slowly, or give it more time with --retry-s",
}
"""What to do about a refusal, by its code."""


NOT_OPEN_FIXES: Final[Mapping[str, str]] = {
    "CORRUPT": "stop logd, then see the damage: penstock logd check DATA_DIR",
    "WRONG_KEY": "give logd the master key that the stream was written with, then: "
    "penstock logd streams open NAME",
    "KEY_UNAVAILABLE": "name the master key in the configuration of logd and start it again, or see"
    " to the key's file, then: penstock logd streams open NAME",
    "UNKNOWN_FORMAT": "start the version of Penstock that wrote it, or a later one",
    "UNAVAILABLE": "see the log of logd and its disk, then: penstock logd streams open NAME",
}
"""What to do about a stream whose log cannot be opened, by the cause."""

_FOR_NOW: Final = frozenset({"UNAVAILABLE", "NOT_READY", "TOO_MANY_CONNECTIONS"}) | {
    "TOO_MANY_REQUESTS"
}
"""Refusals that pass: asking again later can succeed."""


class AskRefusedError(ServiceError):
    """The daemon will not do what was asked (exit code 1)."""


class DamagedAnswerError(ServiceError):
    """What the daemon sent or stores is damaged (exit code 65)."""

    exit_code = ExitCode.DATA


def server_option(function: Function) -> Function:
    """Add `--server HOST:PORT,...`, and how to be let in there: `asking` finds that by itself."""
    for option in reversed(_ACCESS):
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
        with LogClient(server, timeout_s=COMPLETION_S, access=Access(**given)) as log:
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


@contextmanager
def asking(server: str, make: Callable[..., LogClient] | None = None) -> Iterator[LogClient]:
    """A client of a running daemon; its errors become messages with a fix, and exit codes.

    Args:
        server: Its addresses.
        make: Makes the client of a server and `access`; None: a plain one.
    """
    try:
        client = (make or LogClient)(server, access=access())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    try:
        with client:
            yield client
    except RefusedError as error:
        raise refusal(error) from None
    except UnsettledError as error:
        raise ServiceUnavailableError(
            safe(str(error)),
            fix="ask again: a leader is being found; if it lasts: penstock logd cluster info",
        ) from None
    except UnavailableError as error:
        raise ServiceUnavailableError(
            safe(str(error)), fix="start logd, or name its fetch address with --server"
        ) from None
    except CorruptError as error:
        raise DamagedAnswerError(
            safe(str(error)), fix="see that --server is logd's fetch address, then the log of logd"
        ) from None


def refusal(error: RefusedError) -> ServiceError:
    """A refusal in the words of a command, with the exit code of its kind."""
    cause = error.detail.get("cause")
    message = f"{safe(str(error))} ({error.code}{f': {cause}' if cause else ''})"
    fix = FIXES.get(error.code, "correct the request")
    if cause is not None:
        fix = NOT_OPEN_FIXES.get(str(cause), NOT_OPEN_FIXES["UNAVAILABLE"])
    if "CORRUPT" in (error.code, cause):
        return DamagedAnswerError(message, fix=fix)
    if error.code in _FOR_NOW:
        return ServiceUnavailableError(message, fix=fix)
    return AskRefusedError(message, fix=fix)
