"""Whose a job's directories are, and what follows for whoever asks for something there."""

import os
import pwd
from pathlib import Path

from penstock.router.wrong_key import WrongKeyError


def require_its_user(directory: Path, *, user: int | None = None) -> None:
    """What root makes in a job's directories stands in the way of a job that is not root's.

    Whose the job is says its lock; the directory's owner, where it has not run yet.

    Args:
        directory: Of the job.
        user: Who asks, by number; without it this process's.

    Raises:
        ConfigError: This is root, and the job somebody else's.
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


def require_room_for_letters(directory: Path, sinks: list[str]) -> None:
    """What a sink refuses must have a place, before it has refused anything.

    Args:
        directory: Of the dead letters; it need not be there yet.
        sinks: Whose directories are below it.

    Raises:
        ConfigError: This user may not write there, or something else is in its place.
    """
    for home in (directory, *(directory / sink for sink in sinks)):
        place = next(it for it in (home, *home.absolute().parents) if os.path.lexists(it))
        if not place.is_dir():
            reason = f"{place} is no directory"
        elif not os.access(place, os.W_OK | os.X_OK):
            reason = f"this user may not write to {place}, which belongs to {owner_of(place)}"
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
