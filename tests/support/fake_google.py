"""Fakes of Google's token endpoint and of Cloud Logging, written from Google's documentation.

"Using OAuth 2.0 for Server to Server Applications": a service account's JWT, signed with its key,
is exchanged for a bearer token. "Method: entries.write", "LogEntry" and
"WriteLogEntriesPartialErrors": what an entry must look like, that those that are wrong are named
and the others written, and that a query shows one of those with the same log, timestamp
and insertId.
"""

import atexit
import gzip
import json
import re
import tempfile
import threading
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from typing_extensions import override

from penstock.base.clock import SystemClock
from tests.support.fault_door import Answered, Asked, Backend, FaultDoor

PROJECT: Final = "penstock-tests"
ACCOUNT: Final = f"router@{PROJECT}.iam.gserviceaccount.com"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AUDIENCE: Final = "https://oauth2.googleapis.com/token"
_TOKEN: Final = "ya29.token-"
_KEYS: Final = {
    "logName", "insertId", "timestamp", "severity", "labels", "jsonPayload", "textPayload",
    "trace", "spanId", "resource",
}  # fmt: skip
_SEVERITIES: Final = {
    "DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY",
}  # fmt: skip
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z")
_LOG: Final = re.compile(r"projects/[a-z][a-z0-9-]*/logs/[A-Za-z0-9_.%-]{1,511}")
_ENTRY_BYTES_MAX: Final = 256 * 1024
_REQUEST_BYTES_MAX: Final = 10_000_000
_DAY_S: Final = 86_400
_INVALID: Final = 3


class FakeTokens(Backend):
    """The token endpoint of one service account.

    Attributes:
        given: How many tokens it has given out.
    """

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.url = ""
        self.given = 0

    def know(self, authorization: str | None) -> bool:
        """Whether a header has one of those that were given out."""
        known = {f"Bearer {_TOKEN}{number}" for number in range(1, self.given + 1)}
        return authorization in known

    @override
    def handle(self, asked: Asked) -> Answered:
        form = parse_qs(asked.body.decode())
        if form.get("grant_type") != [_GRANT]:
            return _oauth_error("unsupported_grant_type")
        try:
            claims = jwt.decode(
                form["assertion"][0], self.key.public_key(), ["RS256"], audience=_AUDIENCE,
                options={"require": ["exp", "iat", "iss", "aud"]},
            )  # fmt: skip
        except jwt.InvalidTokenError:
            return _oauth_error("invalid_grant")
        if claims["iss"] != ACCOUNT or not claims["scope"]:
            return _oauth_error("invalid_grant")
        self.given += 1
        said = {"access_token": f"{_TOKEN}{self.given}", "expires_in": 3600, "token_type": "Bearer"}
        return Answered(200, json.dumps(said).encode(), {"Content-Type": "application/json"})


class GoogleAccount:
    """A service account: its key in a file, and the endpoint that knows it."""

    def __init__(self, directory: Path) -> None:
        self.tokens = FakeTokens()
        self.door = FaultDoor(self.tokens)
        self.tokens.url = f"{self.door.url}/token"
        pem = self.tokens.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self.file = directory / "account.json"
        self.file.write_text(
            json.dumps(
                {
                    "type": "service_account",
                    "project_id": PROJECT,
                    "private_key_id": "k1",
                    "private_key": pem.decode(),
                    "client_email": ACCOUNT,
                    "token_uri": self.tokens.url,
                }
            )
        )


@cache
def google_account() -> GoogleAccount:
    """One for all tests of this process."""
    directory = tempfile.TemporaryDirectory()
    made = GoogleAccount(Path(directory.name))
    atexit.register(directory.cleanup)
    atexit.register(made.door.close)
    return made


class FakeCloudLogging(Backend):
    """One project.

    Attributes:
        keys: Of a sink that is let in.
        refused_text: An entry that holds it is invalid.
        entries: What was written, in order; what was written twice stands there twice.
    """

    def __init__(self) -> None:
        self._tokens = google_account().tokens
        self.keys = {"project": PROJECT, "credentials_file": str(google_account().file)}
        self.refused_text = "POISON"
        self.entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @override
    def handle(self, asked: Asked) -> Answered:
        with self._lock:
            if not self._tokens.know(asked.headers.get("authorization")):
                return _error(401, "UNAUTHENTICATED", "invalid authentication credentials")
            if asked.path != "/v2/entries:write":
                return Answered(404, b"<html>The requested URL was not found")
            body = asked.body
            if asked.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if len(body) > _REQUEST_BYTES_MAX:
                return _error(400, "INVALID_ARGUMENT", "Log entries exceed the limit of a request")
            try:
                return self._write(json.loads(body))
            except (ValueError, KeyError, TypeError) as error:
                return _error(400, "INVALID_ARGUMENT", f"Invalid JSON payload received: {error}")

    def queried(self) -> list[dict[str, Any]]:
        """What a query shows."""
        keyed = {
            (entry["logName"], entry["timestamp"], entry["insertId"]): entry
            for entry in self.entries
        }
        return list(keyed.values())

    def _write(self, asked: dict[str, Any]) -> Answered:
        if set(asked) - {"entries", "partialSuccess", "resource", "logName", "labels", "dryRun"}:
            raise ValueError("unknown name")
        resource = asked.get("resource", {})
        if not isinstance(resource.get("type"), str):
            raise TypeError("resource.type")
        faults = {place: self._fault(it) for place, it in enumerate(asked["entries"])}
        faults = {place: fault for place, fault in faults.items() if fault}
        if faults and not asked.get("partialSuccess"):
            return _error(400, "INVALID_ARGUMENT", next(iter(faults.values())))
        if not asked.get("dryRun"):
            self.entries += [
                it for place, it in enumerate(asked["entries"])
                if place not in faults and _is_kept(it)
            ]  # fmt: skip
        if not faults:
            return Answered(200, b"{}", {"Content-Type": "application/json"})
        errors = {
            str(place): {"code": _INVALID, "message": fault} for place, fault in faults.items()
        }
        kind = "type.googleapis.com/google.logging.v2.WriteLogEntriesPartialErrors"
        detail = {"@type": kind, "logEntryErrors": errors}
        return _error(400, "INVALID_ARGUMENT", next(iter(faults.values())), detail)

    def _fault(self, entry: dict[str, Any]) -> str:
        if unknown := set(entry) - _KEYS:
            raise ValueError(f"Unknown name {unknown}")
        if not _LOG.fullmatch(entry.get("logName", "")):
            return "invalid log name"
        if not entry["logName"].startswith(f"projects/{PROJECT}/"):
            return "another project"
        if len({"jsonPayload", "textPayload"} & set(entry)) != 1:
            return "one payload"
        if entry.get("severity", "DEFAULT") not in _SEVERITIES:
            raise ValueError("severity")
        if not _TIME.fullmatch(entry.get("timestamp", "")):
            raise ValueError("timestamp")
        if not all(isinstance(it, str) for it in entry.get("labels", {}).values()):
            raise TypeError("labels")
        if len(json.dumps(entry)) > _ENTRY_BYTES_MAX:
            return "Log entry with size of more than 256.0K exceeds maximum size"
        return "POISON" if self.refused_text in json.dumps(entry) else ""


def _is_kept(entry: dict[str, Any]) -> bool:
    """What is too far from now is answered with success, and not ingested."""
    moment = datetime.strptime(entry["timestamp"][:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    ahead_s = moment.timestamp() - SystemClock().unix_ns() / 1e9
    return -30 * _DAY_S <= ahead_s <= _DAY_S


def _error(status: int, name: str, text: str, *details: Any) -> Answered:
    said = {"code": status, "status": name, "message": text, "details": list(details)}
    body = json.dumps({"error": said}).encode()
    return Answered(status, body, {"Content-Type": "application/json"})


def _oauth_error(text: str) -> Answered:
    said = {"error": text, "error_description": "as the fake says"}
    return Answered(400, json.dumps(said).encode(), {"Content-Type": "application/json"})
