"""Which store a job file means."""

from penstock.router.sinks.extras import MissingLibraryError
from penstock.router.stores.objects import Objects
from penstock.router.stores.settings import HdfsStore, S3Store
from penstock.router.wrong_key import WrongKeyError


def open_store(config: S3Store | HdfsStore) -> Objects:
    """A connection to a store.

    Raises:
        ConfigError: A library is missing, or the settings cannot be used.
    """
    try:
        return _opened(config)
    except MissingLibraryError as error:
        raise WrongKeyError(f"checkpoint_store: {error.reason}", fix=error.fix) from error


def _opened(config: S3Store | HdfsStore) -> Objects:
    if config.type == "s3":
        from penstock.router.stores.s3 import S3Objects

        return S3Objects(config)
    from penstock.router.stores.hdfs import HdfsObjects

    return HdfsObjects(config)
