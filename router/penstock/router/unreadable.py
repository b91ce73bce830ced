"""Files that a job names and that this user cannot read: secrets, certificates."""

from collections.abc import Iterator

from pydantic import BaseModel

from penstock.router.config import JobConfig
from penstock.router.errors import LogUnavailableError
from penstock.router.wrong_key import WrongKeyError
from penstock.service import ServiceError, UnavailableError
from penstock.service.secret import Secret

_OF_SOURCE = ("token_file", "tls_ca_file", "cert_file", "key_file")


def logd_is_away(config: JobConfig, error: LogUnavailableError) -> ServiceError:
    """What to tell of a logd that could not be reached, or did not let this reader in."""
    for told in _of_source(config):
        return WrongKeyError(told, fix="name a file that this user may read")
    return UnavailableError(
        f"logd: {error}",
        fix="start logd, or correct the key `logd`, or what `source` lets the router in with",
    )


def unreadable(config: JobConfig) -> Iterator[str]:
    """Each with its place in the job file, and why."""
    yield from _of_source(config)
    for name, sink in config.sinks.items():
        yield from _of_secrets(sink, f"sinks.{name}")


def _of_source(config: JobConfig) -> Iterator[str]:
    for key in _OF_SOURCE:
        path = getattr(config.source, key)
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as error:
            yield f"source.{key}: {path}: cannot be read: {error.strerror}"


def _of_secrets(value: object, place: str) -> Iterator[str]:
    if isinstance(value, Secret):
        try:
            value.read()
        except OSError as error:
            yield f"{place}: {value.file}: cannot be read: {error.strerror or error}"
    elif isinstance(value, BaseModel):
        for name, part in value:
            yield from _of_secrets(part, f"{place}.{name}")
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _of_secrets(part, f"{place}.{name}")
