"""Settings that all sinks have in common; each sink's own are in its module."""

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from penstock.router.delivery.rate_limiter import RateLimiter
from penstock.service import Quantities
from penstock.service.config_types import Form

Name = Annotated[
    str,
    Form(
        r"^[a-z0-9][a-z0-9_-]{0,62}$",
        "1 to 63 characters of a-z 0-9 _ -, the first a letter or digit",
    ),
]
"""Name of a job, route or sink; it becomes part of file names."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(Quantities):
    """A block of a job file: unknown keys are errors, and nothing changes while it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RateLimit(Settings):
    """Maximum rate of records to a sink, on the average."""

    records_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    bytes_per_s: Annotated[float, Field(ge=1024, allow_inf_nan=False)] | None = None

    @property
    def is_set(self) -> bool:
        return self.records_per_s is not None or self.bytes_per_s is not None

    def limiter(self, now_ns: int) -> RateLimiter:
        """Return accounts that begin full."""
        return RateLimiter(
            records_per_s=self.records_per_s, bytes_per_s=self.bytes_per_s, now_ns=now_ns
        )

    def pause_s(self, records: int, size: int) -> float:
        """Return the seconds that a delivery of so many records and bytes costs."""
        by_records = 0.0 if self.records_per_s is None else records / self.records_per_s
        return max(by_records, 0.0 if self.bytes_per_s is None else size / self.bytes_per_s)


class SinkConfig(Settings):
    """The settings of one sink; a subclass narrows `type` to its one name.

    Secrets are `SecretStr`, or paths of files that hold them.
    """

    type: str
    rate_limit: RateLimit = RateLimit()

    def about(self) -> str:
        """One line for `penstock router plan`: where records go, and how often each."""
        return self.type

    def spark_jars(self) -> tuple[Path, ...]:
        """Return the jars that Spark's JVMs need for the sink."""
        return ()
