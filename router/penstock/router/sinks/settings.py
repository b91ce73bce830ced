"""What the settings of all sinks have in common; each sink's own stand beside it."""

from typing import Annotated

from pydantic import ConfigDict, Field

from penstock.service import Quantities

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(Quantities):
    """A block of a job file: unknown keys are mistakes, and nothing changes while it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RateLimit(Settings):
    """How fast records go to a sink, on the average over batches."""

    records_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    bytes_per_s: Annotated[float, Field(ge=1024, allow_inf_nan=False)] | None = None


class SinkConfig(Settings):
    """The settings of one sink; a subclass narrows `type` to its one name.

    Secrets are `SecretStr`, or paths of files that hold them.
    """

    type: str
    rate_limit: RateLimit = RateLimit()

    def about(self) -> str:
        """One line for `penstock router plan`: where records go, and how often each."""
        return self.type


class Batch(Settings):
    """The size of one request."""

    records_max: Annotated[int, Field(ge=1, le=100_000)] = 1000
    bytes_max: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = 1024 * 1024


class Retry(Settings):
    """Full jitter: a random pause up to `first_s`, doubled at each attempt up to `max_s`."""

    first_s: Seconds = 0.5
    max_s: Seconds = 30.0
