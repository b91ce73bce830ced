"""Where rules and quotas are kept: those of a lone logd, or of a cluster as a node has them."""

from typing import Protocol

from penstock.logd.core.cluster.access import AccessCommand, AccessTable


class Access(Protocol):
    """Used on the event loop."""

    @property
    def table(self) -> AccessTable:
        """What holds now; nobody else changes it.

        Raises:
            NotReadyError: This node does not know yet.
        """

    async def change(self, command: AccessCommand) -> bool:
        """Have a command applied, durably; whether it changed anything.

        Raises:
            RefusedError: As `penstock.logd.core.cluster.access.apply_access`.
            UnavailableError: Not in time; it may still be done.
        """
