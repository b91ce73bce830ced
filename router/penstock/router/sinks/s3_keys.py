"""Who asks S3, and in which region."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from penstock.router.sinks.settings import Settings
from penstock.service.secret import Secret


class S3Keys(Settings):
    """Credentials; none: those that AWS's tools find."""

    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] = "us-east-1"
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
