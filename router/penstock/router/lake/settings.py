"""The settings of sinks that write Parquet files: how the lake stays tidy."""

from typing import Annotated, Self, cast

from pydantic import Field, model_validator

from penstock.router.job.config_errors import WrongKeyError
from penstock.router.job.settings import Seconds, Settings
from penstock.router.lake.layout import (
    PARTITIONED_BY,
    PartitionColumn,
    Partitioning,
    PartitionTime,
)
from penstock.router.lake.plan import DEFAULTS, Policy


class Compaction(Settings):
    """Settings of the merging of small files.

    Attributes:
        enabled: Whether the job compacts; None: only in a local directory, where readers by
            listing never miss a row.
        interval_s: Seconds between two passes.
        after_s: Seconds between the end of a partition's hour, or day, and its merge.
        target_bytes: Approximate size of merged files; larger ones are left alone.
        keep_s: Seconds for which replaced files stay for readers of the index.
    """

    enabled: bool | None = None
    interval_s: Seconds = 600.0
    after_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = DEFAULTS.after_s
    target_bytes: Annotated[int, Field(ge=1024 * 1024, le=2**31)] = DEFAULTS.target_bytes
    keep_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = DEFAULTS.keep_s


class Retention(Settings):
    """Settings of the removal of partitions.

    Attributes:
        max_age_days: Days after the end of its time at which a whole partition is removed.
    """

    max_age_days: Annotated[float, Field(gt=0, le=36_500, allow_inf_nan=False)]


class LakeFileSettings(Settings):
    """Settings of a sink that writes Parquet files."""

    partition_by: Annotated[tuple[PartitionColumn, ...], Field(min_length=1)] | None = None
    partition_time: PartitionTime = "event"
    compaction: Compaction = Compaction()
    retention: Retention | None = None

    @model_validator(mode="after")
    def _partitions_are_nested(self) -> Self:
        by = self.partition_by
        if by is None:
            return self
        if len(set(by)) < len(by):
            raise ValueError("partition_by names a column twice")
        if "hour" in by and "date" not in by[: by.index("hour")]:
            raise ValueError("partition_by: an hour is of a date, which comes before it")
        if self.retention is not None and "date" not in by:
            raise ValueError("retention needs date in partition_by: whole partitions are removed")
        return self

    def partitioning(self, found: tuple[str, ...] | None, key: str, place: str) -> Partitioning:
        """Return the directories that rows belong to.

        `found` are the columns by which the lake is partitioned that is there; None: there is none.

        Raises:
            ConfigError: The lake is partitioned otherwise.
        """
        by = self.partition_by
        if by is None and found is not None:
            known = {"kind", "date", "hour", "service"}
            if set(found) <= known:
                return Partitioning(cast("tuple[PartitionColumn, ...]", found), self.partition_time)
        if found is not None and found != (by or PARTITIONED_BY):
            raise WrongKeyError(
                f"{key}.partition_by: {place} is partitioned by {', '.join(found)}",
                fix=f"set partition_by to [{', '.join(found)}], or name another place",
            )
        return Partitioning(by or PARTITIONED_BY, self.partition_time)

    @property
    def max_age_s(self) -> float | None:
        """Maximum age of partitions in seconds; None: unlimited."""
        return None if self.retention is None else self.retention.max_age_days * 86_400

    def policy(self, *, merges: bool) -> Policy:
        """The settings as compaction has them."""
        it = self.compaction
        return Policy(it.target_bytes, it.after_s, it.keep_s, self.max_age_s, merges)
