"""Another master key becomes the active one while logd runs.

The section `encryption` of the configuration's file is read again when the file changes: nothing
else of it is. Then the keys of each open log are wrapped with the key that is active now; as with
certificates, what cannot be done is reported and tried again, and until then nothing changes.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.logd.encryption.cipher import SegmentCipher
from penstock.logd.encryption.key_file import rewrap
from penstock.logd.encryption.master_keys import EncryptionSection, MasterKeys
from penstock.logd.errors import CorruptError, LogdError
from penstock.logd.partition.partition import Partition
from penstock.logd.security.renewal import Renewed

Read = Callable[[], EncryptionSection | None]


class Rotation:
    """Looks whenever it is told to, on one thread.

    Args:
        path: The configuration's file.
        read: Reads the section `encryption` of it; raises LogdError, or OSError.
        masters: Follow the section.
        partitions: Those that are open; asked on the thread that looks.

    Attributes:
        problem: Why not all is as the section says; empty when it is.
    """

    def __init__(
        self,
        path: Path,
        read: Read,
        masters: MasterKeys,
        partitions: Callable[[], Iterable[Partition]],
    ) -> None:
        def section() -> EncryptionSection:
            found = read()
            if found is None:
                raise CorruptError("has no section `encryption` any more", where=str(path))
            return found

        self.problem = ""
        self._section = Renewed("encryption", (path,), section)
        self._masters = masters
        self._partitions = partitions

    def look(self, *, anyway: bool = False) -> None:
        """Read the section again if its file has changed, or `anyway`; then see to the logs."""
        self._section.look(anyway=anyway)
        self._masters.follow(self._section.value)
        problems = [self._section.problem] if self._section.problem else []
        try:
            for partition, cipher in self._behind():
                try:
                    rewrap(partition.log.directory, self._masters, cipher)
                except (CorruptError, OSError) as error:
                    problems.append(f"stream {partition.label}: {error}")
        except LogdError as error:  # a master key, which all of them want
            problems.append(str(error))
        self.problem = f"encryption: {'; '.join(problems)}" if problems else ""

    def _behind(self) -> list[tuple[Partition, SegmentCipher]]:
        """Partitions whose keys are wrapped with another master key than the active one."""
        active = self._masters.active
        open_now = [(partition, partition.log.cipher) for partition in self._partitions()]
        return [
            (partition, cipher)
            for partition, cipher in open_now
            if cipher is not None and cipher.master != active
        ]
