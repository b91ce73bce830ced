"""Records and the NATS subjects they are published on: ``<prefix>.<kinds>.<service>``."""

import re
from functools import lru_cache
from typing import Final, Literal

from penstock.specs.limits import SUBJECT_TOKEN_CHARACTERS_MAX

KindToken = Literal["logs", "traces", "metrics", "events", "audit"]

KINDS: Final[dict[str, KindToken]] = {
    "log": "logs",
    "span": "traces",
    "metric": "metrics",
    "event": "events",
    "audit": "audit",
}
"""Kind of a record to the second token of its subject."""

PREFIX: Final = "telemetry"
UNKNOWN_SERVICE: Final = "unknown"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def subject_token(text: str) -> str:
    """Any text as one subject token.

    Whatever is not a letter, digit, ``-`` or ``_`` becomes ``_``: dots would add levels, ``*`` and
    ``>`` are wildcards, spaces end a protocol line.
    """
    return _token(text[:SUBJECT_TOKEN_CHARACTERS_MAX])  # no more of a long text is cached


@lru_cache(maxsize=4096)
def _token(text: str) -> str:
    return _UNSAFE.sub("_", text) or UNKNOWN_SERVICE


@lru_cache(maxsize=4096)
def subject_of(kind: str, service: str, prefix: str = PREFIX) -> str:
    """The subject of a service's records of one kind.

    Raises:
        KeyError: The kind is not one of the five.
    """
    return f"{prefix}.{KINDS[kind]}.{subject_token(service)}"


def kind_of(subject: str) -> str | None:
    """The kind of the records on a subject; None when it is not a telemetry subject."""
    kinds = {token: kind for kind, token in KINDS.items()}
    tokens = subject.split(".")
    return next((kinds[token] for token in reversed(tokens[:-1]) if token in kinds), None)
