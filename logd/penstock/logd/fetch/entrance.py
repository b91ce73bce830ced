"""Who is on a connection: its certificate says so, or a request `authenticate`.

It is looked at again for each request.
"""

from collections.abc import Callable
from typing import Final

from penstock.logd.errors import RefusedError
from penstock.logd.fetch.wire import Document
from penstock.logd.security.authenticator import Authenticator
from penstock.logd.security.identity import Identity, UnauthenticatedError
from penstock.logd.security.principal import Principal
from penstock.logd.tcp.channel import Channel

_FAILURES_MAX: Final = 3
"""Wrong tokens on one connection, after which it is closed."""

_DOOR: Final = "fetch"


class Entrance:
    """Of one connection.

    Args:
        authenticator: Finds out.
        channel: With the other side's certificate, if it showed one.
        let_in: As the attribute.

    Raises:
        UnauthenticatedError: The certificate names nobody.

    Attributes:
        identity: Whose the connection is now.
        let_in: Takes the connection for one of those that are known, once it is; raises
            RefusedError when there are too many of them.
    """

    def __init__(
        self, authenticator: Authenticator, channel: Channel, let_in: Callable[[], None]
    ) -> None:
        self.let_in = let_in
        self._authenticator = authenticator
        self._peer = channel.peer
        self._failures = 0
        try:
            self.identity = authenticator.certificate(channel.certificate)
        except UnauthenticatedError as error:
            authenticator.note_failure(_DOOR, error, self._peer)
            raise
        if not self.identity.principal.is_anonymous:
            authenticator.note_success(_DOOR)

    @property
    def must_say(self) -> bool:
        """Whether whoever is there has still to say who they are, before anything else."""
        return self._authenticator.required and self.identity.principal.is_anonymous

    @property
    def tried_enough(self) -> bool:
        """Whether the connection has had its chances."""
        return self._failures >= _FAILURES_MAX

    def caller(self, identity: Identity) -> Principal:
        """Who makes a request, or is about to be answered, by the identity it was made with.

        Raises:
            UnauthenticatedError: Nobody knows, or not any more.
        """
        try:
            return self._authenticator.principal(identity)
        except UnauthenticatedError as error:
            self._authenticator.note_failure(_DOOR, error, self._peer)
            raise

    async def authenticate(self, request: Document) -> Document:
        """Take who a request says that the connection is from now on; what to answer.

        Raises:
            UnauthenticatedError: The token or API key is nobody's; who it was before, it stays.
            RefusedError: `BAD_REQUEST`.
        """
        text = request.get("token")
        if not isinstance(text, str) or set(request) - {"api", "id", "token"}:
            message = "`authenticate` takes a text `token`, and nothing else"
            raise RefusedError("BAD_REQUEST", message, key="token")
        try:
            self.identity = await self._authenticator.secret_later(text)
        except UnauthenticatedError as error:
            self._failures += 1
            self._authenticator.note_failure(_DOOR, error, self._peer)
            raise
        self._authenticator.note_success(_DOOR)
        return _describe(self.identity)


def _describe(identity: Identity) -> Document:
    principal = identity.principal
    return {
        "principal": principal.name,
        "method": principal.method.value,
        "groups": sorted(principal.groups),
        "expires_ns": identity.expires_ns,
    }
