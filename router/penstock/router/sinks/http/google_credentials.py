"""A bearer token of Google's, from the key of a service account or from what the machine has.

Without a file that is Application Default Credentials: `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's
own login, the metadata server of a machine or pod (workload identity). The file is read for each
request, so that a new key needs no restart; a token is asked for when the one before ends.
"""

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

from penstock.router.delivery.result import DeliveryResult, Paused, Retryable
from penstock.router.job.config_errors import needed


class NoTokenError(Exception):
    """There is no token now.

    Attributes:
        verdict: Result for a request without the token.
    """

    def __init__(self, verdict: DeliveryResult) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


class GoogleToken:
    """Credentials of one account; any thread may ask for a token.

    Args:
        credentials_file: A service account's key, as Google gives it out (JSON).
        timeout_s: Maximum seconds of a request to Google's token endpoint.
    """

    def __init__(self, credentials_file: Path | None, *, scope: str, timeout_s: float) -> None:
        self._file = credentials_file
        self._scopes = [scope]
        self._timeout_s = timeout_s
        self._auth = needed("google.auth", extra="google")
        self._accounts = needed("google.oauth2.service_account", extra="google")
        self._errors = needed("google.auth.exceptions", extra="google")
        self._requests = needed("google.auth.transport.requests", extra="google")
        self._sessions = needed("requests", extra="google")
        self._lock = threading.Lock()
        self._given = b""
        self._credentials: Any = None

    def read(self) -> str:
        """The token now.

        Raises:
            NoTokenError: There is none.
        """
        try:
            with self._lock:
                credentials = self._current()
                if not credentials.valid:
                    with self._sessions.Session() as session:
                        asking = self._requests.Request(session)
                        credentials.refresh(partial(asking, timeout=self._timeout_s))
        except self._errors.GoogleAuthError as error:
            said = " ".join(str(error).split())[:300]
            passes = error.retryable or isinstance(error, self._errors.TransportError)
            raise NoTokenError(Retryable(said) if passes else Paused(said)) from None
        except OSError as error:
            raise NoTokenError(Paused(f"credentials cannot be read: {error}")) from None
        except (ValueError, KeyError, TypeError) as error:
            kind = type(error).__name__
            raise NoTokenError(
                Paused(f"{self._file} is no service account's key: {kind}")
            ) from None
        token: str = credentials.token
        return token

    def forget(self) -> None:
        """The destination does not know it: the next one is a new one."""
        self._credentials = None

    def _current(self) -> Any:
        if self._file is None:
            if self._credentials is None:
                self._credentials, _ = self._auth.default(scopes=self._scopes)
            return self._credentials
        given = self._file.read_bytes()
        if self._credentials is None or given != self._given:
            key = self._accounts.Credentials.from_service_account_info(
                json.loads(given), scopes=self._scopes
            )
            self._credentials, self._given = key, given
        return self._credentials
