"""Objects in a bucket of S3, or of what speaks its protocol, by botocore's client.

A name is made by one of many because it is put with `If-None-Match: *`. A store that ignores that
header is found out when a job takes its lease there: see `penstock.router.storage.store_lease`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import HttpUrl, field_validator, model_validator

from penstock.router.job.config_errors import WrongKeyError, needed
from penstock.router.job.settings import Settings
from penstock.service import UnavailableError
from penstock.service.config_types import Form, Secret

T = TypeVar("T")

ANSWER_S: Final = 200.0
"""Maximum seconds of one request, where nobody waits for it who has less time."""

_FOR_THE_OPERATOR: Final = frozenset(
    {
        "400", "401", "403", "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed",
        "InvalidAccessKeyId", "InvalidBucketName", "NoSuchBucket", "NotImplemented",
        "PermanentRedirect", "SignatureDoesNotMatch",
    }
)  # fmt: skip
_ATTEMPTS: Final = 2
_URL: Final = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#]*)?")


class S3Keys(Settings):
    """Credentials; none: those that AWS's tools find."""

    region: Annotated[str, Form(r"^[a-z0-9-]{1,40}$", "1 to 40 characters of a-z 0-9 -")] = (
        "us-east-1"
    )
    access_key_id: Secret | None = None
    secret_access_key: Secret | None = None
    session_token: Secret | None = None

    @model_validator(mode="after")
    def _credentials_are_whole(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("give access_key_id and secret_access_key, or neither")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token is of no use without access_key_id")
        return self


class S3Location(S3Keys):
    """A place in a bucket of S3, or of what speaks its protocol."""

    url: str
    endpoint: HttpUrl | None = None
    ca_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _names_a_bucket(cls, url: str) -> str:
        if _URL.fullmatch(url) is None:
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


class S3Objects:
    """The objects below the URL; see `Objects`.

    Args:
        location: Name in messages: a key of the job file, or a URL.
        answer_s: Maximum seconds of one request.
        headers: Headers of stored objects.
    """

    def __init__(
        self,
        config: S3Location,
        *,
        location: str,
        answer_s: float = ANSWER_S,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._config = config
        self._location = location
        self._answer_s = answer_s
        self._headers = dict(headers or {})
        self._botocore_session = needed("botocore.session", extra="s3")
        self._settings = needed("botocore.config", extra="s3").Config
        errors = needed("botocore.exceptions", extra="s3")
        self._refused = errors.ClientError
        self._failed = errors.BotoCoreError
        self._no_credentials = (errors.NoCredentialsError, errors.PartialCredentialsError)
        self._lock = Lock()
        self._client: Any = None

    def create(self, name: str, data: bytes) -> bool:
        with self._telling(name):
            try:
                self._call("put_object", Key=self._key(name), Body=data, IfNoneMatch="*")
            except self._refused as error:
                # The latter: somebody else is at it.
                if _code(error) in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
                    return False
                raise
        return True

    def put(self, name: str, data: bytes) -> None:
        with self._telling(name):
            self._call("put_object", Key=self._key(name), Body=data)

    def get(self, name: str) -> bytes | None:
        return self._of_object(name, lambda: self._content(name))

    def names(self, below: str) -> list[str]:
        return [name for name, _ in self.listed(below)]

    def listed(self, below: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return names below a prefix, sorted, with their entries in the listing; "" lists all."""
        found: list[Mapping[str, Any]] = []
        more: dict[str, str] = {}
        prefix = self._key(f"{below}/" if below else "")
        with self._telling(below):
            while True:
                page = self._call("list_objects_v2", Prefix=prefix, **more)
                found += page.get("Contents", ())
                if not page.get("IsTruncated"):
                    break
                more = {"ContinuationToken": page["NextContinuationToken"]}
        named = ((str(it["Key"]).removeprefix(self._config.prefix), it) for it in found)
        return sorted(named, key=lambda it: it[0])

    def size(self, name: str) -> int | None:
        """An object's size in bytes; None: there is none."""
        return self._of_object(
            name, lambda: int(self._call("head_object", Key=self._key(name))["ContentLength"])
        )

    def range(self, name: str, begin: int, size: int) -> bytes | None:
        """A part of an object; None: there is none."""
        wanted = f"bytes={begin}-{begin + size - 1}"
        return self._of_object(name, lambda: self._content(name, Range=wanted))

    def remove(self, name: str) -> None:
        with self._telling(name):
            self._call("delete_object", Key=self._key(name))

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _of_object(self, name: str, ask: Callable[[], T]) -> T | None:
        """What the store says of an object; None: there is none."""
        with self._telling(name):
            try:
                return ask()
            except self._refused as error:
                if _code(error) in ("NoSuchKey", "404"):
                    return None
                raise

    def _content(self, name: str, **about: str) -> bytes:
        content: bytes = self._call("get_object", Key=self._key(name), **about)["Body"].read()
        return content

    def _key(self, name: str) -> str:
        return f"{self._config.prefix}{name}"

    def _call(self, what: str, **about: Any) -> Any:
        call: Callable[..., Any] = getattr(self._connected(), what)
        return call(Bucket=self._config.bucket, **about)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        config = self._config
        keys = {
            "aws_access_key_id": config.access_key_id,
            "aws_secret_access_key": config.secret_access_key,
            "aws_session_token": config.session_token,
        }
        client = self._botocore_session.get_session().create_client(
            "s3",
            region_name=config.region,
            endpoint_url=str(config.endpoint) if config.endpoint else None,
            verify=str(config.ca_file) if config.ca_file else None,
            **{name: secret.read() for name, secret in keys.items() if secret is not None},
            config=self._settings(
                connect_timeout=self._answer_s / 2 / _ATTEMPTS,
                read_timeout=self._answer_s / 2 / _ATTEMPTS,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                s3={"addressing_style": "path" if config.endpoint else "auto"},
                # What is not Amazon's does not know the newer checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        if self._headers:
            for call in ("PutObject", "CopyObject"):
                client.meta.events.register(f"before-sign.s3.{call}", self._add_headers)
        return client

    def _add_headers(self, request: Any, **_: Any) -> None:
        for name, value in self._headers.items():
            request.headers[name] = value

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Within it, what goes wrong is told with the place, and by who must act."""
        location = f"{self._location}: {self._config.url.rstrip('/')}: {name}"
        try:
            yield
        except self._refused as error:
            code = _code(error)
            said = f"{location}: {code}: {error.response.get('Error', {}).get('Message', '')}"
            self.close()  # another client reads secrets, and finds a role's credentials, again
            if code in _FOR_THE_OPERATOR:
                raise WrongKeyError(
                    said,
                    fix="see to the URL, the region, the credentials and their rights below"
                    f" {self._location}"
                    " (to get, put, list and delete objects); the store must know If-None-Match",
                ) from None
            raise UnavailableError(
                said, fix="see the store's log, or ask again when it takes requests"
            ) from None
        except self._no_credentials as error:
            raise WrongKeyError(
                f"{location}: {error}",
                fix="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use another way of"
                " AWS's; a job's sink or store also takes access_key_id and secret_access_key",
            ) from None
        except (self._failed, OSError) as error:
            self.close()
            raise UnavailableError(
                f"{location}: {error}", fix="see whether the store answers at that URL"
            ) from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))
