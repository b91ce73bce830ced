"""Connections of the commands to logd and NATS, and the fixes for their errors."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from penstock.base.errors import DamagedDataError
from penstock.logd.cli.output import safe
from penstock.logd.client import Access, LogClient
from penstock.logd.client.following import position_request
from penstock.logd.errors import (
    CorruptError,
    LogdError,
    NoAnswerError,
    RefusedError,
    UnavailableError,
    UnsettledError,
)
from penstock.service import ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError
from penstock.service.cli import POSITION, IntRange, Position

FIXES: Final[Mapping[str, str]] = {
    "AMBIGUOUS_STREAM": "name the partition's directory instead of the data directory",
    "BAD_BACKUP": "make another backup: the files are not the frames of a backup",
    "BAD_BATCH": "publish with a client of this version: logd cannot read the batch",
    "BAD_CONSUMER": "choose a name such as billing or team-a/billing",
    "BAD_GROUP": "choose a name such as billing or team-a/billing",
    "BAD_HEADER": "publish without that header, or correct it",
    "BAD_HELLO": "give each node its own name: `node` in its configuration",
    "BAD_INCARNATION": "upgrade this client: its request has no incarnation that logd can read",
    "BAD_ISR": "ask again: the set of replicas in sync has changed",
    "BAD_NAME": "choose a name of letters, digits, _ and -",
    "BAD_NODE": "list the nodes: penstock logd cluster info",
    "BAD_OPTIONS": "see the options: penstock logd streams create --help",
    "BAD_QUOTA": "see what a quota may say: penstock logd quotas set --help",
    "BAD_REPLICAS": "list the nodes: penstock logd cluster info",
    "BAD_REQUEST": "correct the option or argument that the message names",
    "BAD_RULE": "see what a rule may say: penstock logd acl --help",
    "BAD_SUBJECT": "choose a subject such as telemetry.logs.>",
    "BAD_TEXT": "write it without control characters",
    "BAD_TLS_FILE": "name readable PEM files: --tls-ca, --cert, --key, for NATS --nats-ca, ...",
    "BAD_TOKEN_FILE": "name a file with a token or an API key in one line",
    "BELOW_MIN_ISR": "ask for a smaller min_isr, or for more replicas",
    "BUSY": "publish more slowly, or give it more time with --retry-s",
    "CLUSTERED": "put the section `cluster` back, or use another data_dir",
    "COMMAND_TOO_LARGE": "ask for less in one request, such as fewer partitions",
    "CORRUPT": "read past it with --skip-damaged; what is damaged: penstock logd gaps",
    "CURSOR_BEHIND": "another consumer of that name has gone further; use another name",
    "DATA_NOT_GONE": "ask again in a moment: the nodes still delete the stream of before",
    "ENCRYPTION_UNAVAILABLE": "give logd a master key: `encryption` in its configuration",
    "EXISTS": "use another data_dir: this one has a Raft log",
    "FENCED": "join the group again: another member has the partition now",
    "GROUP_ACTIVE": "see the members that read the stream: penstock logd groups info NAME",
    "GROUP_REFUSED": "see the group: penstock logd groups info NAME",
    "HAS_LEADER": "leave the partition as it is: it has a leader",
    "HEADERS_TOO_LARGE": "publish fewer headers, or raise the stream's max_header_bytes",
    "INTERNAL": "this is a bug in Penstock: please report it with the log of logd",
    "IN_SYNC_ALIVE": "wait a second: a replica in sync is alive and is about to lead",
    "IS_LEADER": "let another node lead first: penstock logd streams move NAME",
    "IS_REPLICA": "see which nodes have a replica: penstock logd streams info NAME",
    "KEY_UNAVAILABLE": "name the master key in `encryption` of logd's configuration",
    "LAST_IN_ISR": "wait until another replica is in sync: penstock logd streams ls",
    "LEADER_NOT_IN_ISR": "wait until that node is in sync: penstock logd streams info NAME",
    "LOCKED": "stop the process that uses the directory; check and dump also take --live",
    "LOST": "look whether the change was made, then ask again: its answer is lost",
    "MESSAGE_TOO_LARGE": "publish less at a time, or raise the stream's max_message_bytes",
    "NATS_MAX_PAYLOAD": "publish less at a time, or raise max_payload of the NATS server",
    "NATS_REFUSED": "permit that subject to logd's user in the configuration of nats-server",
    "NODE_REMOVED": "start the node with another name and an empty data_dir",
    "NOT_ACTIVE": "choose other nodes, or: penstock logd cluster undrain NODE",
    "NOT_A_DATA_DIR": "name the data_dir of logd's configuration, or a directory with .log files",
    "NOT_CONTROLLER": "ask again in a moment: the controller has moved to another node",
    "NOT_DRAINED": "penstock logd cluster drain NODE, and wait until it has no replicas",
    "NOT_ENOUGH_NODES": "ask for fewer replicas, or start more nodes",
    "NOT_ENOUGH_REPLICAS": "see which nodes are missing: penstock logd cluster info",
    "NOT_HERE": "ask again: a leader is being found; if it lasts: penstock logd cluster info",
    "NOT_LEADER": "ask again: a leader is being found; if it lasts: penstock logd cluster info",
    "NOT_READY": "ask again in a moment, or name other nodes with --server",
    "NOT_RELEASED": "ask again in a moment: the member before has not let go of the partition",
    "NOT_RESTORING": "restore into a stream that is not there yet: --as NAME",
    "NOT_VOTER": "choose another voter: penstock logd cluster info",
    "NOT_YET": "ask again in a moment: the other node has not taken over yet",
    "NO_ATOMIC_PUBLISH": "publish without Nats-Batch headers: logd stores no atomic batches",
    "NO_CANDIDATE": "list the nodes: penstock logd cluster info",
    "NO_COUNTERS": "publish without that header: logd has no counters",
    "NO_LEADER": "see the nodes: penstock logd cluster info",
    "NO_REPLICA": "start one of the nodes that have a replica: penstock logd cluster info",
    "NO_ROLLUP": "publish without that header: logd has no roll-ups; see compaction",
    "NO_SCHEDULES": "publish without that header: logd schedules no messages",
    "NO_STATE": "found a group in the directory, or join one, before it is opened",
    "NO_SUBJECT_SEQUENCE": "publish without that header: logd counts no sequences by subject",
    "NO_TTL": "publish without that header: a stream's retention says how long records stay",
    "OTHER_INITIAL_MEMBERS": "name the node that was alone as the initial member, on every node",
    "OTHER_INCARNATION": "ask again: the stream was deleted and created again",
    "OTHER_MEMBER": "start the node with the name and the cluster that its data_dir belongs to",
    "OUT_OF_RANGE": "ask for an offset in that range, or earliest or latest",
    "PERMISSION_DENIED": "ask the administrator of logd for that rule; see: penstock logd acl test",
    "PLAIN_TOKEN": "connect with TLS: --tls, or --tls-ca FILE",
    "QUOTA_EXCEEDED": "ask again later, or see the quotas: penstock logd quotas ls",
    "READ_ONLY": "make it writable: penstock logd streams writable NAME; or end its restore",
    "RECORDS_LOST": "read on from the offset that it names: an election lost the records before",
    "RESERVED_NAME": "choose a name that does not begin with __",
    "SEQUENCE_GAP": "send again from the batch after the last one that is stored",
    "SESSION_BROKEN": "nothing: the node opens another session by itself",
    "STALE_EPOCH": "ask again: the partition has another leader now",
    "STALE_VERSION": "look at the present state and ask again: another change came first",
    "STORAGE_FAILED": "make room on the disk, or mend it; then open what `penstock logd streams ls`"
    " shows as failed: penstock logd streams open NAME",
    "STREAM_DELETING": "start those nodes, or drain and remove them: penstock logd cluster info",
    "STREAM_DIFFERS": "use its options or another name, or: penstock logd streams alter NAME",
    "STREAM_FULL": "see its limits: penstock logd streams info NAME",
    "STREAM_RECREATED": "read the new stream from earliest: these offsets belong to a deleted one",
    "TOO_FEW_REPLICAS": "ask for more replicas",
    "TOO_LARGE": "send less in one request",
    "TOO_MANY_CONNECTIONS": "ask again later, or raise max_connections in logd's configuration",
    "TOO_MANY_CURSORS": "delete cursors that nobody needs: penstock logd cursors ls",
    "TOO_MANY_GROUPS": "stop groups that nobody needs: penstock logd groups ls",
    "TOO_MANY_MEMBERS": "start fewer members: penstock logd groups info NAME",
    "TOO_MANY_NODES": "remove nodes that are no more: penstock logd cluster remove NODE",
    "TOO_MANY_PARTITIONS": "ask for fewer partitions, or delete streams that nobody needs",
    "TOO_MANY_QUOTAS": "remove quotas that nobody needs: penstock logd quotas ls",
    "TOO_MANY_REQUESTS": "ask later, or raise max_outstanding_fetches in logd's configuration",
    "TOO_MANY_RULES": "remove rules that nobody needs: penstock logd acl ls",
    "TOO_MANY_STREAMS": "delete streams that nobody needs: penstock logd streams ls",
    "UNAUTHENTICATED": "show who you are: --token-file FILE, or --cert FILE and --key FILE",
    "UNAVAILABLE": "see the nodes, penstock logd cluster info, and their logs; then ask again",
    "UNCLEAN_NOT_ALLOWED": "start a node that was in sync: penstock logd streams info NAME",
    "UNKNOWN_API": "upgrade logd or this command: they are of different versions",
    "UNKNOWN_DISKS": "start these nodes: the cluster then notes the directory of each by itself",
    "UNKNOWN_FORMAT": "use the version of Penstock that wrote it, or a later one",
    "UNKNOWN_GROUP": "list those with members: penstock logd groups ls",
    "UNKNOWN_NODE": "list the nodes: penstock logd cluster info",
    "UNKNOWN_PARTITION": "see which it has: penstock logd streams info NAME",
    "UNKNOWN_PRODUCER": "begin a new chain of batches: logd does not know this producer any more",
    "UNKNOWN_QUOTA": "list the quotas: penstock logd quotas ls",
    "UNKNOWN_RULE": "list the rules: penstock logd acl ls",
    "UNKNOWN_SNAPSHOT": "nothing: the node asks for a new copy by itself",
    "UNKNOWN_STREAM": "list the streams: penstock logd streams ls",
    "UNKNOWN_VERSION": "upgrade logd or this command: they are of different versions",
    "WRONG_CERTIFICATE": "give the node a certificate that names it (`cluster.tls`)",
    "WRONG_CLUSTER": "give all nodes the same `cluster.name`, or correct the address",
    "WRONG_KEY": "give logd the master key that the stream was written with, and open it again",
    "WRONG_LAST_MESSAGE_ID": "see what was stored last: penstock logd tail STREAM",
    "WRONG_LAST_SEQUENCE": "see what was stored last: penstock logd tail STREAM",
    "WRONG_NODE": "correct that node's address in `cluster.initial_members` or `cluster.advertise`",
    "WRONG_OFFSET": "start the restore again: another restore writes the stream, too",
    "WRONG_STREAM": "see which streams store the subject: penstock logd match SUBJECT",
}
"""Fix by a refusal's code."""

NOT_OPEN_FIXES: Final[Mapping[str, str]] = {
    "CORRUPT": "stop logd, then see the damage: penstock logd check DATA_DIR",
    "WRONG_KEY": "give logd the master key that the stream was written with, then: "
    "penstock logd streams open NAME",
    "KEY_UNAVAILABLE": "name the master key in the configuration of logd and start it again, or see"
    " to the key's file, then: penstock logd streams open NAME",
    "UNKNOWN_FORMAT": "start the version of Penstock that wrote it, or a later one",
    "UNAVAILABLE": "see the log of logd and its disk, then: penstock logd streams open NAME",
}
"""Fix by the reason why a stream's log cannot be opened."""

_UNKNOWN_CALLER: Final[Mapping[str, str]] = {
    "busy": "ask again later",
    "certificate": "show a certificate of the authority that logd trusts: --cert FILE",
    "expired": "get a new one, and name its file: --token-file FILE",
    "not_taken": "show an API key or a certificate, as `auth` in logd's configuration says",
    "not_yet": "wait until it is valid, and see that the clocks agree",
    "revoked": "get a new one, and name its file: --token-file FILE",
    "stale_keys": "see why logd does not reach the issuer of tokens: the log of logd",
    "unknown_key": "name the file with a key that logd knows; penstock logd keys new makes one",
}
"""Fix by the reason of a failed authentication."""

_NO_ANSWER: Final[Mapping[str, str]] = {
    "certificate": "name the authority of its certificate: --tls-ca FILE",
    "client_certificate": "show a certificate: --cert FILE, and --key FILE",
    "closed": "see that --server is logd's fetch address; if it has TLS: --tls, or --tls-ca FILE",
    "no_tls": "leave out --tls, --tls-ca and --cert, or name logd's address with TLS",
    "silent": "see the log of logd, or name other nodes with --server",
    "tls": "see the log of logd, and the files given with --tls-ca, --cert and --key",
    "unreachable": "start logd, or name its fetch address with --server",
}
"""Fix by the cause of a missing answer."""


def advice(error: LogdError) -> str:
    """The fix for an error of a client."""
    match error:
        case RefusedError():
            return _for_refusal(error)
        case NoAnswerError():
            return _NO_ANSWER.get(error.cause, _NO_ANSWER["unreachable"])
        case UnsettledError():
            return FIXES["NOT_HERE"]
        case CorruptError():
            return (
                "see that --server is logd's fetch address (127.0.0.1:9293, not NATS's or that of"
                " `admin`), then the log of logd"
            )
        case _:
            return FIXES["UNAVAILABLE"]


def _for_refusal(error: RefusedError) -> str:
    cause = error.detail.get("cause")
    if cause is not None:
        return NOT_OPEN_FIXES.get(str(cause), NOT_OPEN_FIXES["UNAVAILABLE"])
    fix = FIXES.get(error.code, "see what the message names, and the log of logd")
    if error.code == "UNAUTHENTICATED":
        return _UNKNOWN_CALLER.get(str(error.detail.get("reason")), fix)
    return fix


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
    """Add `--server HOST:PORT,...` and the options of authentication, which `asking` finds."""
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


Note = Callable[[click.Context, click.Parameter, Any], None]
"""A callback of click's that keeps an option's value in the context."""


def note_below(key: str) -> Note:
    """Return a callback that keeps the values of options in the context's `meta`, below a key."""

    def note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        assert parameter.name is not None
        context.meta.setdefault(key, {})[parameter.name] = value

    return note


def file_option(name: str, parameter: str, variable: str, text: str, *, note: Note) -> Any:
    """Return an option of a file, which `note` keeps.

    Args:
        name: The option, as ``--tls-ca``.
        parameter: The name under which its path is kept.
        variable: The environment's variable of the same, without `PENSTOCK_LOGD_`.
        text: What it is, for `--help`.
        note: Keeps the path.
    """
    return click.option(
        name,
        parameter,
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=f"PENSTOCK_LOGD_{variable}",
        show_envvar=True,
        metavar="FILE",
        expose_value=False,
        callback=note,
        help=text,
    )


def tls_option(name: str, variable: str, text: str, *, note: Note) -> Any:
    """Return a flag that asks for TLS, which `note` keeps; see `file_option`."""
    return click.option(
        name,
        "tls",
        is_flag=True,
        envvar=f"PENSTOCK_LOGD_{variable}",
        show_envvar=True,
        expose_value=False,
        callback=note,
        help=text,
    )


_access_option: Final = partial(file_option, note=note_below(_GIVEN))
_ACCESS: Final = (
    _access_option("--token-file", "token_file", "TOKEN_FILE", "Token or API key to be known by."),
    tls_option(
        "--tls", "TLS", "Connect with TLS, as each of the next two does.", note=note_below(_GIVEN)
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
    """Return the credentials of the running command, by its options and the environment.

    Raises:
        click.UsageError: The options contradict each other.
    """
    try:
        return Access(**click.get_current_context().meta.get(_GIVEN, {}))
    except ValueError as error:
        words = str(error).replace("key_file", "--key").replace("cert_file", "--cert")
        raise click.UsageError(words) from None


@dataclass(frozen=True, slots=True)
class Clients:
    """Factories of the clients that commands use; a program that runs them may pass its own.

    It is the object of the command's click context.

    Attributes:
        log: Returns a client, as `LogClient`; None: the command's own.
        publisher: Returns a publisher, as `BlockingPublisher`; None: the command's own.
        file_bytes: Approximate bytes of each file of a backup; None: the command's own.
    """

    log: Callable[..., Any] | None = None
    publisher: Callable[..., Any] | None = None
    file_bytes: int | None = None


def clients(context: click.Context | None = None) -> Clients:
    """Return the clients of the running command."""
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


def partitions_of(log: LogClient, stream: str, wanted: Collection[int]) -> list[int]:
    """The numbers of a stream's partitions, or those of them that are wanted.

    Raises:
        RefusedError: `UNKNOWN_STREAM`, `UNKNOWN_PARTITION`.
        UnavailableError: The stream is not open.
    """
    info = log.stream(stream)
    count = len(info.partitions)
    if not count:  # an earlier logd shows no partitions of a stream that is not open
        raise UnavailableError(f"stream {stream!r}: {info.problem or 'it has no partitions'}")
    missing = sorted(number for number in wanted if number >= count)
    if missing:
        message = f"stream {stream!r} has no partition {missing[0]}"
        raise RefusedError("UNKNOWN_PARTITION", message, stream=stream, partition=missing[0])
    return sorted(wanted) or list(range(count))


_TAIL_RECORDS: Final = 10

PARTITIONS: Final = click.option(
    "--partition",
    "partitions",
    type=IntRange(min=0),
    multiple=True,
    help="Only this one; repeatable. Default: all of them.",
)


def check_position(position: Position | None, partitions: int, option: str) -> None:
    """Refuse an offset where several partitions are read, each of which has its own offsets.

    Raises:
        UsageError: It is one.
    """
    if isinstance(position, int) and partitions > 1:
        message = f"{option} {position} is an offset, and {partitions} partitions are read"
        raise click.UsageError(f"{message}: name one with --partition, or give a time")


def resolve(log: LogClient, stream: str, partition: int, position: Position) -> int:
    """The offset that a position means now."""
    if isinstance(position, int):
        return position
    if isinstance(position, datetime):
        time_ns = position_request(position)
        assert isinstance(time_ns, int)
        return log.offset_for_timestamp(stream, time_ns, partition)
    start, end = log.offsets(stream, partition)
    return start if position == "earliest" else end


def first_offset(log: LogClient, stream: str, partition: int, position: Position | None) -> int:
    """Return the offset at which to begin; None as position: ten records before the end.

    Raises:
        RefusedError: `OUT_OF_RANGE`: the offset cannot be read.
    """
    start, end = log.offsets(stream, partition)
    if position is None:
        return max(start, end - _TAIL_RECORDS)
    offset = resolve(log, stream, partition, position)
    if not start <= offset <= end:
        message = f"offset {offset} of {stream} is not in {start} to {end}"
        raise RefusedError("OUT_OF_RANGE", message, earliest=start, latest=end)
    return offset


__all__ = ["PARTITIONS", "POSITION", "Position", "check_position", "first_offset", "resolve"]
