"""Files that a job names and that this user cannot read: secrets, certificates."""

from collections.abc import Iterator

from penstock.router.config import JobConfig
from penstock.router.errors import LogUnavailableError
from penstock.router.wrong_key import WrongKeyError
from penstock.service import ServiceError, UnavailableError
from penstock.service.secret import secrets_of

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
    for place, secret in secrets_of(config.sinks, "sinks"):
        try:
            secret.read()
        except OSError as error:
            yield f"{place}: {secret.file or secret.env}: cannot be read: {error.strerror or error}"


def _of_source(config: JobConfig) -> Iterator[str]:
    for key in _OF_SOURCE:
        path = getattr(config.source, key)
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as error:
            yield f"source.{key}: {path}: cannot be read: {error.strerror}"
