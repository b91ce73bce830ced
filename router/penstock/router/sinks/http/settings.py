"""Settings that all sinks share that send requests."""

import ssl
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, Field, HttpUrl, SecretStr, model_validator
from typing_extensions import override

from penstock.base.http.client import client_tls
from penstock.router.delivery.breaker import BreakerLimits
from penstock.router.delivery.core import Policy
from penstock.router.job.settings import Seconds, Settings, SinkConfig
from penstock.router.sinks.http.client import Compression
from penstock.service.config_types import Secret

EVIDENCE_GAP_S: Final = 60.0
"""Minimum of `evidence_gap_s`; requests that succeed during an outage are further apart."""

HIDDEN: Final = "***"
"""Stands for what people are not shown."""


class RequestBatch(Settings):
    """The size of one request; `max_bytes` before compression."""

    max_records: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 1024 * 1024


class RequestRetry(Settings):
    """Retries of a request, and the handling of a record that seems to break the destination.

    A pause is random (full jitter), up to a limit that doubles at each attempt.

    Attributes:
        initial_backoff_s: The limit of the first pause.
        max_backoff_s: The limit of any pause.
    """

    initial_backoff_s: Seconds = 0.5
    max_backoff_s: Seconds = 30.0
    failure_threshold: Annotated[int, Field(ge=1, le=100)] = 5
    max_paused_backoff_s: Seconds = 60.0
    suspect_after: Annotated[int, Field(ge=2, le=100)] = 5
    confirmed_after_s: Seconds = 120.0
    poison_after_s: Seconds = 3600.0
    rejected_after: Annotated[int, Field(ge=0, le=1000)] = 3

    def policy(self, timeout_s: float, pause_s: float = 0.0) -> Policy:
        """Return the core's policy.

        Args:
            timeout_s: Seconds that a destination takes to fail which falls silent.
            pause_s: Seconds that a rate limit may keep two requests apart.
        """
        return Policy(
            suspect_after=self.suspect_after,
            evidence_gap_s=max(EVIDENCE_GAP_S, 4 * (timeout_s + pause_s)),
            confirmed_after_s=self.confirmed_after_s,
            poison_after_s=self.poison_after_s,
            rejected_after=self.rejected_after,
        )

    def limits(self) -> BreakerLimits:
        return BreakerLimits(
            initial_backoff_s=self.initial_backoff_s,
            max_backoff_s=self.max_backoff_s,
            failure_threshold=self.failure_threshold,
            max_paused_backoff_s=self.max_paused_backoff_s,
        )


class RequestSettings(SinkConfig):
    """Settings of a sink that sends requests."""

    timeout_s: Seconds = 10.0
    batch: RequestBatch = RequestBatch()
    retry: RequestRetry = RequestRetry()


class TaskRequestSettings(RequestSettings):
    """Settings of a sink whose requests Spark's tasks send."""

    max_in_flight: Annotated[int, Field(ge=1, le=64)] = 4


class Tls(Settings):
    """Trusted authorities and the client's certificate; PEM files."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _files_fit_together(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file is of no use without cert_file")
        return self

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a connection.

        Raises:
            OSError: A file cannot be read, or is of another kind.
        """
        return client_tls(self.ca_file, self.cert_file, self.key_file)


class HttpSettings(RequestSettings):
    """Settings of a sink that sends HTTP requests."""

    url: HttpUrl
    headers: dict[str, Secret] = Field(default_factory=dict)
    compression: Compression = "gzip"
    tls: Tls = Tls()

    @override
    def about(self) -> str:
        return f"{self.type} at {self.shown_url}"

    @property
    def shown_url(self) -> str:
        """The URL for people: without user and password, which are not sent either.

        Nor does it show what its query says, for that may be a key.
        """
        parts = urlsplit(str(self.url))
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=host, query=hidden_query(parts.query)))


class HttpTaskSettings(HttpSettings, TaskRequestSettings):
    """Settings of a sink that sends HTTP requests in Spark's tasks."""


def hidden_query(query: str) -> str:
    """The query of a URL with the names that it has, and no values."""
    parts = query.split("&") if query else []
    return "&".join(
        f"{name}={HIDDEN}" if is_named else HIDDEN
        for name, is_named, _ in (part.partition("=") for part in parts)
    )


T = TypeVar("T")


def legible(value: T) -> T:
    """Settings, or a part of them, for a look at what is sent.

    A secret that this user may not read is `***`.
    """
    copy: Any = value
    if isinstance(value, Secret):
        try:
            value.read()
        except OSError:
            copy = Secret(value=SecretStr(HIDDEN))
    elif isinstance(value, BaseModel):
        copy = value.model_copy(update={name: legible(part) for name, part in value})
    elif isinstance(value, dict):
        copy = {name: legible(part) for name, part in value.items()}
    found: T = copy
    return found
