"""How the commands reach a running logd, and what they say when it will not do as asked."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from penstock.logd.client import LogClient
from penstock.logd.errors import CorruptError, RefusedError, UnavailableError
from penstock.service import ExitCode, ServiceError
from penstock.service import UnavailableError as ServiceUnavailableError

Function = TypeVar("Function", bound=Callable[..., Any])

_FIXES = {
    "UNKNOWN_STREAM": "list the streams: penstock logd streams list",
    "OUT_OF_RANGE": "ask for an offset in that range, or earliest or latest",
    "STREAM_DIFFERS": "use the same options, or delete the stream first",
    "STREAM_DELETING": "start those nodes, or drain and remove them: penstock logd nodes",
    "UNAVAILABLE": "see the nodes, penstock logd nodes, and their logs; then ask again",
    "RESERVED_NAME": "choose a name that does not begin with __",
    "CURSOR_BEHIND": "another consumer of that name has gone further; use another name",
    "GROUP_ACTIVE": "see who they are: penstock logd groups show NAME",
    "UNKNOWN_GROUP": "list those with members: penstock logd groups",
    "BAD_CONSUMER": "choose a name such as billing or team-a/billing",
    "STREAM_RECREATED": "ask again: the offsets are those of the stream that was",
    "UNKNOWN_PARTITION": "see which it has: penstock logd streams show NAME",
    "NOT_CLUSTERED": "ask a logd whose configuration has `cluster`",
    "UNKNOWN_NODE": "list the nodes: penstock logd nodes",
    "NODE_REMOVED": "list the nodes: penstock logd nodes",
    "NOT_ACTIVE": "choose other nodes, or: penstock logd nodes undrain NODE",
    "NOT_DRAINED": "penstock logd nodes drain NODE, and wait until it has no replicas",
    "HAS_LEADER": "nothing needs to be lost: it is led",
    "IN_SYNC_ALIVE": "wait a second: it is about to be led, and nothing is lost",
    "NO_REPLICA": "start one of these nodes",
    "NOT_ENOUGH_NODES": "ask for fewer replicas, or start more nodes",
    "BAD_SUBJECT": "choose a subject such as telemetry.logs.>",
}


class AskRefusedError(ServiceError):
    """The daemon will not do what was asked (exit code 1)."""


class DamagedAnswerError(ServiceError):
    """What the daemon sent or stores is damaged (exit code 65)."""

    exit_code = ExitCode.DATA


def server_option(function: Function) -> Function:
    """Add `--server HOST:PORT,...`."""
    return click.option(
        "--server",
        envvar="PENSTOCK_LOGD_SERVER",
        default="127.0.0.1:9293",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="The fetch endpoint of a running logd, or of some nodes of a cluster.",
    )(function)


@contextmanager
def asking(server: str) -> Iterator[LogClient]:
    """A client of a running daemon; its errors become messages with a fix, and exit codes."""
    try:
        client = LogClient(server)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    try:
        with client:
            yield client
    except RefusedError as error:
        raise AskRefusedError(
            f"{error} ({error.code})", fix=_FIXES.get(error.code, "correct the request")
        ) from None
    except UnavailableError as error:
        raise ServiceUnavailableError(
            str(error), fix="start logd, or name its fetch address with --server"
        ) from None
    except CorruptError as error:
        raise DamagedAnswerError(
            str(error), fix="see that --server is logd's fetch address, then the log of logd"
        ) from None


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay rows out in aligned columns; numbers to the right."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [
        max(len(title), *(len(line[column]) for line in lines)) if lines else len(title)
        for column, title in enumerate(titles)
    ]
    right = [bool(rows) and isinstance(rows[0][column], int) for column in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in [list(titles), *lines]
    )
