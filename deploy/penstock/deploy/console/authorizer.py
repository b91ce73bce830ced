"""Admission to the console: the host name of the request, and its token."""

import hmac
import secrets
from pathlib import Path
from typing import Final, Literal

from penstock.base.errors import ConfigError
from penstock.deploy.console.config import ConsoleConfig
from penstock.deploy.private_file import write_private_file

_TOKEN_BYTES: Final = 32
_TOKEN_LENGTH_MIN: Final = 16


class Authorizer:
    """Looks at each request before anything is done for it.

    A page of another site that has its name resolve to this machine (DNS rebinding) calls the
    console by that name; it is refused, and so is a request that says it comes from elsewhere.

    Args:
        config: Names, and who may look.
        address: Address at which the console listens, with the actual port.
    """

    def __init__(self, config: ConsoleConfig, address: str) -> None:
        port = address.rpartition(":")[2]
        names = {"localhost", "127.0.0.1", "[::1]", address.rpartition(":")[0], *config.hosts}
        self._hosts = {called.lower() for name in names for called in (name, f"{name}:{port}")}
        self._token = None if config.token_file is None else token_of(config.token_file)
        read = config.read_token_file
        self._read_token = None if read is None else token_of(read)
        self._open = config.anybody_may_look
        self.refused = 0

    @property
    def acts(self) -> bool:
        """True if there is a token for actions."""
        return self._token is not None

    @property
    def looks(self) -> bool:
        """True if there is a token that only permits reading."""
        return self._read_token is not None

    def is_called_by_name(self, host: str, origin: str) -> bool:
        """Return whether `Host`, and `Origin` if there is one, are the console's."""
        came_from = origin.partition("://")[2].lower() if origin else host.lower()
        return host.lower() in self._hosts and came_from in self._hosts

    def may_look(self, authorization: str) -> bool:
        """Return whether the requester may read."""
        if self._open or _is_shown(self._read_token, authorization):
            return True
        return self.may_act(authorization)

    def may_only_look(self, authorization: str) -> bool:
        """Return whether the requester has the token that only permits reading."""
        return _is_shown(self._read_token, authorization) and not _is_shown(
            self._token, authorization
        )

    def may(self, authorization: str) -> Literal["act", "look", "nothing"]:
        """Return the rights of a client that shows this token."""
        if _is_shown(self._token, authorization):
            return "act"
        return "look" if self._open or _is_shown(self._read_token, authorization) else "nothing"

    def takes(self, authorization: str) -> bool:
        """Return whether the token is one of the console's."""
        return _is_shown(self._token, authorization) or _is_shown(self._read_token, authorization)

    def may_act(self, authorization: str) -> bool:
        """Return whether the requester may act; count a wrong token."""
        if _is_shown(self._token, authorization):
            return True
        self.refused += bool(_token_in(authorization))
        return False


def _token_in(authorization: str) -> str:
    return authorization.removeprefix("Bearer ").strip()


def _is_shown(token: str | None, authorization: str) -> bool:
    shown = _token_in(authorization).encode()
    return token is not None and hmac.compare_digest(shown, token.encode())


def token_of(path: Path) -> str:
    """The token in a file, which is made when there is none.

    Raises:
        ConfigError: It cannot be read or made, or holds too little.
    """
    try:
        if not path.exists():
            write_private_file(path, f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n".encode())
        token = path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"token_file: {path}: {error.strerror}", fix="name a file that the console may read"
        ) from None
    except UnicodeDecodeError:
        token = ""
    if token and not token.isprintable():
        raise ConfigError(
            f"token_file: {path} holds something else than one line of printable text",
            fix="remove it, and one is made",
        )
    if len(token) < _TOKEN_LENGTH_MIN:
        raise ConfigError(
            f"token_file: {path} holds fewer than {_TOKEN_LENGTH_MIN} characters",
            fix="remove it, and one is made",
        )
    return token
