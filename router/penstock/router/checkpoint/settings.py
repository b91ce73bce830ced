"""Settings of the store that keeps a job's checkpoints beside `checkpoint_dir`."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, HttpUrl, field_validator

from penstock.router.hdfs import HdfsSettings, wrong_url
from penstock.router.job.settings import S3Keys, Settings

_S3_URL: Final = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#]*)?")


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


class S3Store(S3Keys, _Store):
    """A bucket of S3, or of what speaks its protocol and knows `If-None-Match: *`."""

    type: Literal["s3"]
    url: str
    endpoint: HttpUrl | None = None
    ca_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _names_a_bucket(cls, url: str) -> str:
        if _S3_URL.fullmatch(url) is None:
            raise ValueError("looks like s3://BUCKET/PATH; another server's address is `endpoint`")
        return url

    @property
    def bucket(self) -> str:
        return self.url.partition("://")[2].partition("/")[0]

    @property
    def prefix(self) -> str:
        """Prefix of all object names; empty, or ending with a slash."""
        path = self.url.partition("://")[2].partition("/")[2].strip("/")
        return f"{path}/" if path else ""


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
