"""Where a job's checkpoints are kept beside `checkpoint_dir`, in the job file."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, HttpUrl

from penstock.router.hdfs import HdfsSettings
from penstock.router.sinks.s3_keys import S3Keys
from penstock.router.sinks.settings import Settings


class _Store(Settings):
    """What all stores have.

    Attributes:
        lease_s: How long a job that has gone without a word keeps others out.
    """

    lease_s: Annotated[float, Field(ge=3, le=600, allow_inf_nan=False)] = 30.0

    @property
    def answer_s(self) -> float:
        """How long a request may take at most, so that a lease is renewed in its time."""
        return self.lease_s / 3


class S3Store(S3Keys, _Store):
    """A bucket of S3, or of what speaks its protocol and knows `If-None-Match: *`."""

    type: Literal["s3"]
    url: Annotated[str, Field(pattern=r"^s3a?://[a-z0-9][a-z0-9.-]{2,62}(/\S*)?$")]
    endpoint: HttpUrl | None = None
    ca_file: Path | None = None

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def prefix(self) -> str:
        """What all names begin with; empty, or with a slash at its end."""
        path = self.url.partition("://")[2].partition("/")[2].strip("/")
        return f"{path}/" if path else ""


class HdfsStore(_Store):
    """A directory of HDFS."""

    type: Literal["hdfs"]
    url: Annotated[str, Field(pattern=r"^hdfs://[^\s/]+/[^\s]+$")]
    hdfs: HdfsSettings = HdfsSettings()


AnyStore = Annotated[S3Store | HdfsStore, Field(discriminator="type")]
