"""Names of the small files beside a log's segments."""

from typing import Final

EPOCHS_NAME: Final = "epochs"
"""Where each leader epoch began: `penstock.logd.store.epochs`."""

MEMORY_NAME: Final = "producers"
"""What an intake remembers of the records: `penstock.logd.memory`."""

REPLICA_NAME: Final = "replica"
"""What a replica knows besides its log: `penstock.logd.store.replica_file`."""

KEYS_NAME: Final = "keys"
"""An encrypted log's keys, and a copy: `penstock.logd.store.key_file`."""

KEYS_COPY_NAME: Final = "keys.copy"

MARK_NAME: Final = "synced"
"""How far the active segment is durable: `penstock.logd.store.mark`."""
