"""What a replica's core says, as publishers and the controller are told."""

from typing import Final

from penstock.logd.acks import Nack
from penstock.logd.core.cluster.heartbeats import Unfit
from penstock.logd.core.publish_options import Refusal
from penstock.logd.core.replication.effects import Refusing

REFUSALS: Final = {
    Refusing.NOTHING: None,
    Refusing.NOT_ENOUGH_REPLICAS: Refusal(
        Nack.NOT_ENOUGH_REPLICAS, "fewer replicas than the stream's minimum are in sync"
    ),
    Refusing.READ_ONLY: Refusal(Nack.READ_ONLY, "the stream is read-only"),
}
"""What everything that is published is refused with; None: nothing is."""


def kind_of_unfit(reason: str, *, failed: bool) -> Unfit:
    """Why a replica cannot lead, in the controller's words."""
    if failed:
        return "failed"
    return "hole" if "damaged range" in reason else "diverged"
