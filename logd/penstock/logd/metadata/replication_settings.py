"""How a stream is to be replicated, as configuration files and requests say it."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.logd.limits import PARTITIONS_PER_STREAM_MAX, REPLICAS_MAX
from penstock.logd.metadata.records import ReplicationOptions


class ReplicationSettings(BaseModel):
    """Beside `StreamSettings`; the attributes are those of `ReplicationOptions`.

    Attributes:
        partitions: How many; this cannot be changed later.
        replication_factor: Replicas of each partition; `all`: one on every active node; None: as
            many as the cluster gives to a stream that does not say.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    partitions: Annotated[int, Field(ge=1, le=PARTITIONS_PER_STREAM_MAX)] = 1
    replication_factor: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | Literal["all"] | None = None
    min_isr: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | None = None
    unclean_election: bool = False
    queue_group: str | None = None
    warm_standby: bool = False
    read_only: bool = False
    paused: bool = False
    held: bool = False

    @model_validator(mode="after")
    def _check_standby(self) -> Self:
        if self.warm_standby and self.queue_group is not None:
            msg = "warm_standby goes with no queue_group: replicas would take each other's share"
            raise ValueError(msg)
        return self

    def options(self, *, factor: int) -> ReplicationOptions:
        """As the cluster's state holds it; `factor` is for where no replication factor is given."""
        wanted = self.replication_factor
        chosen = self.model_dump(exclude={"partitions", "replication_factor"})
        count = factor if wanted is None else 0 if wanted == "all" else wanted
        return ReplicationOptions(replication_factor=count, **chosen)
