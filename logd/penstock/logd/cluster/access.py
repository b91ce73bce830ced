"""Rules and quotas of a cluster, as one of its nodes has and changes them."""

from typing import Final

from penstock.logd.cluster.replicas import NodeReplicas
from penstock.logd.core.cluster.access import AccessCommand, AccessTable
from penstock.logd.core.cluster.state import Refused
from penstock.logd.core.cluster.tables import Done
from penstock.logd.errors import NotReadyError, RefusedError

_CHANGE_S: Final = 10.0


class ClusterAccess:
    """As `penstock.logd.access.store.Access`.

    Args:
        replicas: Of this node.
    """

    def __init__(self, replicas: NodeReplicas) -> None:
        self._replicas = replicas

    @property
    def table(self) -> AccessTable:
        """As `Access`."""
        if not self._replicas.ready:
            raise NotReadyError("this node does not know yet who may do what")
        return self._replicas.cluster.group.state.access

    async def change(self, command: AccessCommand) -> bool:
        """As `Access`; on return this node follows it, and the others a moment later."""
        self._replicas.cluster.check_takes_part(change=True)
        group = self._replicas.cluster.group
        result = await group.change(command, timeout_s=_CHANGE_S)
        if isinstance(result, Refused):
            raise RefusedError(result.code, result.message)
        assert isinstance(result, Done), result
        await group.read(timeout_s=_CHANGE_S)
        return result.changed
