"""The options of a stream, as `streams create` and `streams alter` take them."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

Function = TypeVar("Function", bound=Callable[..., Any])

_LIMITS: Final = ("age_s", "bytes", "messages")


class _FactorType(click.ParamType[Any]):
    """A number of replicas, or all nodes."""

    name = "integer or all"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "all":
            return value
        return click.IntRange(min=1).convert(value, param, ctx)


_OPTIONS: Final = (
    click.option("--ack-on-reply/--no-ack-on-reply", default=None, help="Answer plain publishers."),
    click.option("--ack-policy", type=click.Choice(["all", "leader", "none"]), help="When to ack."),
    click.option(
        "--fsync", type=click.Choice(["commit", "interval", "never"]), help="When to sync."
    ),
    click.option("--fsync-interval-ms", type=int, help="With --fsync interval."),
    click.option("--message-bytes-max", type=int, help="Largest message."),
    click.option("--header-bytes-max", type=int, help="Largest header block of a message."),
    click.option("--header-pairs-max", type=int, help="Most header lines of a message."),
    click.option("--key-bytes-max", type=int, help="Longest key of a record."),
    click.option("--batch-rows-max", type=int, help="Most records of a batch."),
    click.option("--batch-decoded-bytes-max", type=int, help="Most bytes a batch may decode to."),
    click.option("--intake-bytes-max", type=int, help="Bytes that may wait for the disk."),
    click.option("--segment-bytes-max", type=int, help="Size of segment files."),
    click.option("--dedup-window-s", type=int, help="How long a Nats-Msg-Id is remembered."),
    click.option("--dedup-entries-max", type=int, help="Most Nats-Msg-Ids remembered."),
    click.option("--producer-expiry-s", type=int, help="How long an idle producer is remembered."),
    click.option("--producers-max", type=int, help="Most producers remembered."),
    click.option("--retention-age-s", type=int, help="Delete records that are older."),
    click.option("--retention-bytes", type=int, help="Bytes to keep."),
    click.option("--retention-messages", type=int, help="Records to keep."),
    click.option("--discard", type=click.Choice(["old", "new"]), help="What makes room when full."),
    click.option(
        "--compact/--no-compact", default=None, help="Keep only the last record of each key."
    ),
    click.option("--tombstone-retention-s", type=int, help="How long a tombstone is kept."),
    click.option(
        "--replication-factor", type=_FactorType(), help="Replicas, or all: one on every node."
    ),
    click.option("--min-isr", type=int, help="Replicas in sync below which nothing is stored."),
    click.option(
        "--unclean-election/--no-unclean-election",
        default=None,
        help="Let a replica lead that lacks acked records, when no other is left.",
    ),
    click.option("--queue-group", help="NATS queue group that its subject is shared with."),
    click.option(
        "--warm-standby/--no-warm-standby",
        default=None,
        help="Let replicas keep what comes while nobody leads.",
    ),
)


def stream_options(function: Function) -> Function:
    """Add the options that `create` and `alter` have in common."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def chosen_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were given, as the api takes them: the limits of retention are below one key."""
    chosen = {key: value for key, value in options.items() if value is not None}
    limits = {key: chosen.pop(f"retention_{key}", None) for key in _LIMITS}
    retention = {key: value for key, value in limits.items() if value is not None}
    return chosen | ({"retention": retention} if retention else {})


def unset_options(names: tuple[str, ...]) -> dict[str, Any]:
    """Options that are to be none, by the names they have on the command line."""
    keys = [name.removeprefix("--").replace("-", "_") for name in names]
    limits = {key: f"retention_{key}" for key in _LIMITS}
    retention = dict.fromkeys(key for key, name in limits.items() if name in keys)
    plain: dict[str, Any] = dict.fromkeys(key for key in keys if key not in limits.values())
    return plain | ({"retention": retention} if retention else {})
