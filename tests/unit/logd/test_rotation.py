"""Another master key becomes the active one of streams that are open."""

import asyncio
from pathlib import Path

from penstock.logd.encryption.key_file import masters_of
from penstock.logd.encryption.master_keys import EncryptionSection
from penstock.logd.encryption.rotation import Rotation
from penstock.logd.errors import CorruptError
from tests.support.encryption import key_file, master_keys, section
from tests.unit.logd.test_encryption import LOGS, PLAIN, SECRET, node_with, store, values


class Read:
    """What the configuration's file says, or why it cannot be read."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.says: EncryptionSection | Exception | None
        self.name(directory, *names)

    def name(self, directory: Path, *names: str) -> None:
        self.says = EncryptionSection.model_validate(section(directory, *names))

    def __call__(self) -> EncryptionSection | None:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def test_open_streams_follow_the_section_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "logd.yaml"
    path.touch()
    (tmp_path / "data").mkdir()

    async def main() -> None:
        masters = master_keys(tmp_path, "old")
        async with node_with(tmp_path / "data", masters, LOGS, PLAIN) as node:
            await store(node, "logs", SECRET)
            log = node.partition("logs").log
            read = Read(tmp_path, "old")
            rotation = Rotation(path, read, masters, node.engine.partitions)
            rotation.look()
            assert (rotation.problem, masters_of(log.directory)) == ("", ["old"])

            for wrong in (CorruptError("it is no YAML"), None):
                read.says = wrong
                rotation.look(anyway=True)
                assert rotation.problem.startswith("encryption: ")
                assert masters_of(log.directory) == ["old"]

            read.name(tmp_path, "new", "old")
            key_file(tmp_path, "new").unlink()
            rotation.look()  # a problem is looked at again at once
            assert "master key 'new'" in rotation.problem
            await store(node, "logs", SECRET)
            key_file(tmp_path, "new")
            rotation.look()
            assert (rotation.problem, masters_of(log.directory)) == ("", ["new"])
            await store(node, "logs", SECRET)
            assert len(values(node, "logs")) == 3
        async with node_with(tmp_path / "data", master_keys(tmp_path, "new"), LOGS) as node:
            assert len(values(node, "logs")) == 3

    asyncio.run(main())
