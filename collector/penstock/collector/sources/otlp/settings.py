"""Settings of the source `otlp`: addresses, and the largest request (`max_message_bytes`)."""

import re
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import override

from penstock.collector.limits import KIB, MIB
from penstock.collector.sources.settings import REUSE_PORT, ListeningSettings, Section, TlsSection
from penstock.service import HostPort


class CorsSection(Section):
    """Web pages that may send by HTTP; browsers ask before they do (CORS)."""

    allowed_origins: list[str] = Field(
        min_length=1, description="as https://shop.example.com; `*` in one stands for any text"
    )
    allowed_headers: list[str] = Field(
        default_factory=list, description="beside those that OTLP needs"
    )
    max_age_s: int = Field(default=7200, ge=0, description="how long a browser need not ask again")

    def allows(self, origin: str) -> bool:
        """Return whether web pages of an origin may send."""
        return any(
            re.fullmatch(".*".join(map(re.escape, each.split("*"))), origin, re.IGNORECASE)
            for each in self.allowed_origins
        )

    def preflight(self, asked: str) -> dict[str, str]:
        """Return the headers that answer a browser's preflight request."""
        allowed = ["content-type", "content-encoding", *map(str.lower, self.allowed_headers)]
        wanted = [name.strip().lower() for name in asked.split(",") if name.strip()]
        return {
            "access-control-allow-methods": "POST",
            "access-control-allow-headers": ", ".join(
                [name for name in wanted if name in allowed] or allowed
            ),
            "access-control-max-age": str(self.max_age_s),
        }


class OtlpSettings(ListeningSettings):
    """OpenTelemetry protocol over gRPC and HTTP: logs, traces, metrics; acknowledged."""

    type: Literal["otlp"]
    grpc: HostPort | None = "127.0.0.1:4317"
    http: HostPort | None = "127.0.0.1:4318"
    reuse_port: bool = Field(default=False, description=REUSE_PORT)
    tls: TlsSection | None = None
    cors: CorsSection | None = Field(default=None, description="for `http`")
    max_message_bytes: int = Field(default=4 * MIB, ge=KIB, le=64 * MIB)

    @property
    @override
    def can_be_shared(self) -> bool:
        return True

    @property
    @override
    def max_request_bytes(self) -> int:
        return self.max_message_bytes

    @model_validator(mode="after")
    def _listens_somewhere(self) -> "OtlpSettings":
        if self.grpc is None and self.http is None:
            msg = "set `grpc`, `http` or both (HOST:PORT)"
            raise ValueError(msg)
        return self
