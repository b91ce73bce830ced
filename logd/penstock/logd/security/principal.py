"""Who asks for something, and how that is known.

The fetch protocol hands the caller on with a request's `SendingTurn`, gRPC in a context variable;
whoever has neither asks for nobody, and is `ANONYMOUS`. No I/O: permissions are decided on this.
"""

from contextvars import ContextVar, Token
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Method(StrEnum):
    """How it is known who somebody is."""

    ANONYMOUS = "anonymous"
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - a word for it
    KEY = "key"
    NODE = "node"
    """Another node of the cluster, or logd itself."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody.

    Attributes:
        name: What a certificate, a token or an API key's line says. One name is one principal,
            whichever way it is known.
        method: How it is known.
        groups: What it belongs to, as a token's claim or a certificate's organizational units say.
    """

    name: str
    method: Method
    groups: frozenset[str] = frozenset()

    @property
    def is_anonymous(self) -> bool:
        """Whether nobody said who this is."""
        return self.method is Method.ANONYMOUS

    @property
    def is_node(self) -> bool:
        """Whether this is a part of logd."""
        return self.method is Method.NODE


ANONYMOUS: Final = Principal("anonymous", Method.ANONYMOUS)
"""Whoever has not said who they are."""

_CALLER: ContextVar[Principal] = ContextVar("caller", default=ANONYMOUS)


def current_caller() -> Principal:
    """Who makes the call that this code runs for (gRPC)."""
    return _CALLER.get()


def set_caller(caller: Principal) -> Token[Principal]:
    """Have what runs from here on in this context run for somebody; gives what `end_call` takes."""
    return _CALLER.set(caller)


def end_call(before: Token[Principal]) -> None:
    """What runs from here on runs for whom it did before `set_caller`."""
    _CALLER.reset(before)
