"""Checkpoints in a directory of HDFS; see `penstock.router.hdfs` for what a file there promises."""

from penstock.router.checkpoint.settings import HdfsStore
from penstock.router.hdfs import Hdfs


class HdfsObjects:
    """The files below the URL; see `Objects`."""

    def __init__(self, config: HdfsStore) -> None:
        shortest_s = min(config.hdfs.timeout_s, config.answer_s)
        settings = config.hdfs.model_copy(update={"timeout_s": shortest_s})
        self._files = Hdfs(config.url, location="checkpoint_store.url", settings=settings)

    def create(self, name: str, data: bytes) -> bool:
        """As `Objects.create`."""
        return self._files.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        """As `Objects.put`."""
        self._files.replace(name, data)

    def get(self, name: str) -> bytes | None:
        """As `Objects.get`."""
        return self._files.read(name)

    def names(self, below: str) -> list[str]:
        """As `Objects.names`."""
        return sorted(f"{below}/{name}" for name in self._files.names(below, recursive=True))

    def remove(self, name: str) -> None:
        """As `Objects.remove`."""
        self._files.remove(name)

    def close(self) -> None:
        """As `Objects.close`."""
