"""Streams' settings out of requests, all keys at one level."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from penstock.logd.config import StreamSettings
from penstock.logd.errors import RefusedError
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.replication_settings import ReplicationSettings
from penstock.logd.metadata.streams import StreamConfig

Model = TypeVar("Model", bound=BaseModel)

_FIXED: Final = ("name", "subject", "partitions", "encryption", "restore_from")


def parse(model: type[Model], document: Mapping[str, Any]) -> Model:
    """A request, or a part of one.

    Raises:
        RefusedError: `BAD_REQUEST` with the `key` that is wrong first.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "request"
        raise RefusedError(
            "BAD_REQUEST", f"{key}: {first['msg'].removeprefix('Value error, ')}", key=key
        ) from None


def split_settings(document: Mapping[str, Any]) -> tuple[StreamConfig, ReplicationSettings]:
    """What a stream is, and how it is replicated.

    Raises:
        RefusedError: As `parse`.
    """
    known = ReplicationSettings.model_fields
    plain = {key: value for key, value in document.items() if key not in known}
    replication = {key: value for key, value in document.items() if key in known}
    settings = parse(StreamSettings, plain)
    return settings.stream_config(), parse(ReplicationSettings, replication)


def altered(
    config: StreamConfig, options: ReplicationOptions, changes: Mapping[str, Any]
) -> tuple[StreamConfig, ReplicationOptions]:
    """A stream with some options changed; of `retention`, the limits that are named.

    Raises:
        RefusedError: `BAD_REQUEST` with the `key`: there is no such option, it cannot be changed,
            or its value is none.
    """
    for key in _FIXED:
        if key in changes:
            raise RefusedError("BAD_REQUEST", f"{key}: it cannot be changed", key=key)
    wanted: dict[str, Any] = asdict(config) | asdict(options) | dict(changes)
    if "restore_upto" in changes:
        wanted["restore_upto"] = _end_of_restore(config, changes["restore_upto"])
    if isinstance(changes.get("retention"), dict):
        wanted["retention"] = asdict(config.retention) | changes["retention"]
    if "replication_factor" not in changes:
        wanted["replication_factor"] = options.replication_factor or "all"
    changed, replication = split_settings(wanted)
    return changed, replication.options(factor=options.replication_factor)


def _end_of_restore(config: StreamConfig, wanted: object) -> tuple[int, ...]:
    """What ends a restore: that nothing more of the backup is to come.

    Raises:
        RefusedError: `BAD_REQUEST`: anything else is wanted, or it is not restored.
    """
    key = "restore_upto"
    if wanted is not None or not config.restore_from:
        message = f"{key}: it can only be ended, with null, of a stream that was made of a backup"
        raise RefusedError("BAD_REQUEST", message, key=key)
    return config.restore_from
