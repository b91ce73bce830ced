"""Objects in a directory of HDFS; see `penstock.router.hdfs` for what a file there promises."""

from penstock.router.hdfs import Hdfs


class HdfsObjects:
    """The files of a directory; see `Objects`."""

    def __init__(self, files: Hdfs) -> None:
        self._files = files

    def create(self, name: str, data: bytes) -> bool:
        return self._files.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._files.replace(name, data)

    def get(self, name: str) -> bytes | None:
        return self._files.read(name)

    def names(self, below: str) -> list[str]:
        return sorted(f"{below}/{name}" for name in self._files.names(below, recursive=True))

    def remove(self, name: str) -> None:
        self._files.remove(name)

    def close(self) -> None: ...
