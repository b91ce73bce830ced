"""Rules and quotas of a logd that is in no cluster.

<data_dir>/access   all of them (a checkpoint); there is none until the first is made
"""

import asyncio
from pathlib import Path

import orjson

from penstock.logd.core.cluster.access import (
    AccessCommand,
    AccessRecord,
    AccessTable,
    apply_access,
    record_of,
    table_of,
)
from penstock.logd.core.cluster.codec import read_as, write_document
from penstock.logd.errors import UnavailableError
from penstock.logd.store import Checkpoint


class LoneAccess:
    """As `penstock.logd.access.store.Access`; `open` it first.

    Args:
        data_dir: It exists and is locked.
    """

    def __init__(self, data_dir: Path) -> None:
        self._checkpoint = Checkpoint(data_dir / "access")
        self._table = AccessTable()
        self._changing = asyncio.Lock()

    @property
    def table(self) -> AccessTable:
        """As `Access`."""
        return self._table

    def open(self) -> None:
        """Read what is kept.

        Raises:
            CorruptError, LaterVersionError: It is not understood, and nobody is let in by guesses.
            OSError: The disk failed.
        """
        document = self._checkpoint.load()
        if document is not None:
            where = str(self._checkpoint.path)
            self._table = table_of(read_as(AccessRecord, document, where=where))

    async def change(self, command: AccessCommand) -> bool:
        """As `Access`."""
        async with self._changing:
            changed = table_of(record_of(self._table))
            if not apply_access(changed, self._table.version + 1, command):
                return False
            document = orjson.loads(write_document(record_of(changed)))
            try:
                await asyncio.to_thread(self._checkpoint.save, document)
            except OSError as error:
                raise UnavailableError(f"{self._checkpoint.path}: {error}") from None
            self._table = changed
            return True
