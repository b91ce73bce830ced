"""Settings of the store that keeps a job's checkpoints beside `checkpoint_dir`."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from penstock.router.job.settings import Settings
from penstock.router.storage.hdfs import HdfsSettings, wrong_url
from penstock.router.storage.s3 import S3Location


class _Store(Settings):
    """Settings that all stores have.

    Attributes:
        lease_s: Seconds for which a job that has stopped beating keeps other jobs out.
    """

    lease_s: Annotated[float, Field(ge=3, le=600, allow_inf_nan=False)] = 30.0

    @property
    def answer_s(self) -> float:
        """Maximum seconds of one request, short enough that a lease is renewed in time."""
        return self.lease_s / 3


class S3Store(S3Location, _Store):
    """A bucket of S3, or of what speaks its protocol and knows `If-None-Match: *`."""

    type: Literal["s3"]


class HdfsStore(_Store):
    """A directory of HDFS."""

    type: Literal["hdfs"]
    url: str
    hdfs: HdfsSettings = HdfsSettings()

    @field_validator("url")
    @classmethod
    def _names_a_directory(cls, url: str) -> str:
        if wrong := wrong_url(url):
            raise ValueError(wrong)
        if urlsplit(url).path.strip("/") == "":
            raise ValueError("names no directory, as in hdfs://namenode:8020/penstock/JOB")
        return url


AnyStore = Annotated[S3Store | HdfsStore, Field(discriminator="type")]
