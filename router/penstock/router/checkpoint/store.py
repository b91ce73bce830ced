"""The interface that a store of checkpoints implements."""

from typing import Protocol

from penstock.router.checkpoint.settings import HdfsStore, S3Store
from penstock.router.job.config_errors import MissingLibraryError, WrongKeyError


class Objects(Protocol):
    """Small objects by name; a name has parts between slashes.

    What one call has done, every later call sees, from wherever it comes. Each method raises
    `penstock.service.ConfigError` where somebody must change something, and
    `penstock.service.UnavailableError` where it may pass; whether it was done is then not known.
    For any thread.
    """

    def create(self, name: str, data: bytes) -> bool:
        """Store an object whose name is not taken; False: it is. Of several, one succeeds."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Store an object, or another one in its place; readers see either, whole."""
        ...

    def get(self, name: str) -> bytes | None:
        """An object; None: there is none."""
        ...

    def names(self, below: str) -> list[str]:
        """The names that begin so and a slash, in their order, whole."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object that may not be there."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def open_store(config: S3Store | HdfsStore) -> Objects:
    """A connection to a store.

    Raises:
        ConfigError: A library is missing, or the settings cannot be used.
    """
    try:
        if config.type == "s3":
            from penstock.router.checkpoint.s3 import S3Objects

            return S3Objects(config)
        from penstock.router.checkpoint.hdfs import HdfsObjects
        from penstock.router.hdfs import Hdfs

        shortest_s = min(config.hdfs.timeout_s, config.answer_s)
        settings = config.hdfs.model_copy(update={"timeout_s": shortest_s})
        return HdfsObjects(Hdfs(config.url, location="checkpoint_store.url", settings=settings))
    except MissingLibraryError as error:
        raise WrongKeyError(f"checkpoint_store: {error.reason}", fix=error.fix) from error
