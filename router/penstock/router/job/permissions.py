"""Owner of a job's directories, and the checks that commands make by it."""

import hmac
import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.router.errors import LogUnavailableError
from penstock.router.job.config import JobConfig
from penstock.router.job.config_errors import WrongKeyError
from penstock.service import Requester, ServiceError, UnavailableError
from penstock.service.config_types import secrets_of


def require_its_user(directory: Path, *, user: int | None = None) -> None:
    """Require that root does not create files in the directories of another user's job.

    The owner of the job is that of its lock, or of the directory if it has never run.

    Args:
        directory: The job's directory.
        user: Numeric id of the user; None: that of this process.

    Raises:
        ConfigError: This is root, and the job belongs to another user.
    """
    if (os.geteuid() if user is None else user) != 0:
        return
    found = directory / "lock"
    try:
        owner = (found if found.exists() else directory).stat().st_uid
    except FileNotFoundError:
        return
    if owner == 0:
        return
    name = _name_of(owner)
    raise WrongKeyError(
        f"checkpoint_dir: {directory} belongs to the user {name}, and what root makes there or"
        " beside dead letters would stand in the job's way",
        fix=f"run the same command as that user: sudo -u {name} penstock router ...",
    )


def require_room_for_dead_letters(directory: Path, sinks: list[str]) -> None:
    """Require that dead letters can be written, before any record is refused.

    Args:
        directory: Directory of the dead letters; it need not exist.
        sinks: Sinks that have a directory below it.

    Raises:
        ConfigError: This user may not write there, or a path is no directory.
    """
    for home in (directory, *(directory / sink for sink in sinks)):
        existing = next(it for it in (home, *home.absolute().parents) if os.path.lexists(it))
        if not existing.is_dir():
            reason = f"{existing} is no directory"
        elif not os.access(existing, os.W_OK | os.X_OK):
            reason = f"this user may not write to {existing}, which belongs to {owner_of(existing)}"
        else:
            continue
        raise WrongKeyError(
            f"dead_letter_dir: {home}: {reason}",
            fix="let the job's user write there, or name another directory",
        )


def owner_of(path: Path) -> str:
    """The user that it belongs to, for people."""
    try:
        return _name_of(path.stat().st_uid)
    except OSError:
        return "its owner"


def _name_of(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # of a container
        return f"'#{number}'"


PATH: Final = "/dead-letters"
"""Path of the admin actions on dead letters."""

Answer = tuple[str, Mapping[str, Any]]


def refusal(config: JobConfig, visitor: Requester) -> Answer | None:
    """Return the response to a requester who may not act; None: they may."""
    path = config.actions_token_file
    if path is None:
        return "404 Not Found", {"error": "the job has no actions_token_file"}
    try:
        token = path.read_text().strip()
    except OSError as error:
        return "503 Service Unavailable", {"error": f"{path}: {error.strerror}"}
    except UnicodeDecodeError:  # which would show some of it
        return "503 Service Unavailable", {"error": f"{path}: it is no text in UTF-8"}
    shown = visitor.authorization.encode("latin-1", "replace")  # as headers are read
    if not token or not hmac.compare_digest(shown, f"Bearer {token}".encode()):
        return "401 Unauthorized", {"error": "that is not the token of actions_token_file"}
    return None


_OF_SOURCE = ("token_file", "tls_ca_file", "cert_file", "key_file")


def logd_is_away(config: JobConfig, error: LogUnavailableError) -> ServiceError:
    """Return the error for a logd that could not be reached or refused the router's credentials."""
    for told in _of_source(config):
        return WrongKeyError(told, fix="name a file that this user may read")
    return UnavailableError(
        f"logd: {error}",
        fix="start logd, or correct the key `logd`, or what `source` lets the router in with",
    )


def unreadable(config: JobConfig) -> Iterator[str]:
    """Each with its place in the job file, and why."""
    yield from _of_source(config)
    for key_path, secret in secrets_of(config.sinks, "sinks"):
        try:
            secret.read()
        except OSError as error:
            what = secret.file or secret.env
            yield f"{key_path}: {what}: cannot be read: {error.strerror or error}"


def _of_source(config: JobConfig) -> Iterator[str]:
    for key in _OF_SOURCE:
        path = getattr(config.source, key)
        if path is None:
            continue
        try:
            path.read_bytes()
        except OSError as error:
            yield f"source.{key}: {path}: cannot be read: {error.strerror}"
