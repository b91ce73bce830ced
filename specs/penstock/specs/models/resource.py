"""The resource: the service that emitted a record, its instance, and where it runs."""

import os
import platform
import socket
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from penstock.specs import ids
from penstock.specs.limits import (
    ATTRIBUTES_MAX,
    IDENTITY_CHARACTERS_MAX,
    INT64_MAX,
    RESOURCE_BYTES_SOFT,
)
from penstock.specs.models.attributes import clean_attributes, clean_text, encodable
from penstock.specs.models.scalars import AttributeValue

DROPPED: Final = "penstock.resource.dropped_attributes_count"
"""The attribute of a resource that says how many it had that did not fit."""

Identity = Annotated[str, Field(min_length=1, max_length=IDENTITY_CHARACTERS_MAX)]


class Resource(BaseModel):
    """OpenTelemetry resource attributes; four identify, the rest are free."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="allow",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        serialize_by_alias=True,
        validate_by_alias=True,
        validate_by_name=True,
    )
    __pydantic_extra__: dict[str, AttributeValue]

    service_name: Annotated[Identity, Field(alias="service.name")]
    service_version: Annotated[Identity | None, Field(alias="service.version")] = None
    service_instance_id: Annotated[Identity | None, Field(alias="service.instance.id")] = None
    deployment_environment_name: Annotated[
        Identity | None, Field(alias="deployment.environment.name")
    ] = None


def describe_process() -> dict[str, Any]:
    """The resource of this process, with a new instance id and its service unknown.

    The command line is left out on purpose: it carries secrets.
    """
    return {
        "service.name": "unknown_service",
        "service.version": "unknown",
        "service.instance.id": ids.instance_id(),
        "deployment.environment.name": "unknown",
        "host.name": socket.gethostname(),
        "host.arch": platform.machine(),
        "os.type": sys.platform,
        "process.pid": os.getpid(),
        "process.executable.name": os.path.basename(sys.executable),  # noqa: PTH119 - text only
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": platform.python_version(),
        "telemetry.distro.name": "penstock",
    }


def fit_and_count(given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """A resource that the validator accepts: every record of the process is validated with it.

    Identifying attributes that are empty (``service.version=$VERSION`` without one) count as not
    given, long ones are cut, and others are left out once the resource has grown too large for a
    batch's header. How many were, ever, the resource says itself, as `DROPPED`.

    Returns:
        The resource, and how many attributes were left out now.
    """
    rest = dict(given)
    before = rest.pop(DROPPED, 0)
    clean, dropped = clean_attributes(rest)
    fitted: dict[str, Any] = {"service.name": "unknown_service"}
    for key in _IDENTIFYING:
        text = clean_text(clean.pop(key, None) or "", IDENTITY_CHARACTERS_MAX)
        if text:
            fitted[key] = encodable(text)
    size = 0
    for key, value in encodable(clean).items():
        size += len(key.encode()) + len(str(value).encode())
        if size <= RESOURCE_BYTES_SOFT and len(fitted) < ATTRIBUTES_MAX - 1:
            fitted[key] = value
        else:
            dropped += 1
    ever = dropped + (before if before.__class__ is int and 0 < before <= INT64_MAX // 2 else 0)
    if ever:
        fitted[DROPPED] = ever
    return fitted, dropped


_IDENTIFYING: Final = tuple(str(field.alias) for field in Resource.model_fields.values())
