"""What errors on the way to an Iceberg catalog mean: none of them is a record's fault."""

import sys
from types import ModuleType

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from requests.exceptions import ConnectTimeout, InvalidURL

from penstock.router.core.verdict import Busy, Failed, Paused, TooLarge
from penstock.router.sinks.iceberg_catalog import (
    SettingError,
    blaming_settings,
    client_errors,
    client_verdict,
    store_verdict,
)


def of_aws(code: str, status: int) -> ClientError:
    told = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "GetTable")


class MetastoreError(Exception):
    """As Hive's client raises one; thrift's exceptions derive from one of their own."""


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (of_aws("AccessDeniedException", 400), Paused),
        (of_aws("ExpiredTokenException", 400), Paused),
        (of_aws("ThrottlingException", 400), Busy),
        (of_aws("ConcurrentModificationException", 400), Busy),
        (of_aws("InternalServiceException", 500), Busy),
        (of_aws("Odd", 503), Busy),
        (NoCredentialsError(), Paused),
        (EndpointConnectionError(endpoint_url="https://glue"), Busy),
        (ReadTimeoutError(endpoint_url="https://glue"), Busy),
        (MetastoreError("the metastore's database is away"), Busy),
    ],
    ids=repr,
)
def test_a_client_of_a_catalog_says_whether_somebody_must_correct_something(
    error: Exception, verdict: type
) -> None:
    assert type(client_verdict(error, str(error))) is verdict


def test_errors_of_every_client_that_is_installed_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thrift = ModuleType("thrift.Thrift")
    thrift.TException = MetastoreError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "thrift", ModuleType("thrift"))
    monkeypatch.setitem(sys.modules, "thrift.Thrift", thrift)
    assert isinstance(NoCredentialsError(), client_errors())
    assert isinstance(of_aws("X", 400), client_errors())
    assert isinstance(MetastoreError(), client_errors())
    monkeypatch.setitem(sys.modules, "thrift.Thrift", None)
    assert not isinstance(MetastoreError(), client_errors())


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectTimeout("no answer"), Busy),
        (InvalidURL("no URL"), Paused),
        (PermissionError("no"), Paused),
        (OSError("When reading: HTTP status 403"), Paused),
        (OSError("When writing: HTTP status 503"), Busy),
        (OSError("HTTP status 413"), TooLarge),
        (ValueError("of a row, perhaps"), Failed),
    ],
    ids=repr,
)
def test_a_store_that_fails_is_waited_for(error: Exception, verdict: type) -> None:
    assert type(store_verdict(error, str(error))) is verdict


def test_a_setting_that_is_wrong_is_said_without_what_it_says() -> None:
    with pytest.raises(SettingError) as caught, blaming_settings({"token": "hush", "none": ""}):
        raise ValueError("properties: {'token': 'hush'}")
    assert str(caught.value) == "the catalog cannot be used: properties: {'token': '***'}"
    with pytest.raises(InvalidURL), blaming_settings({}):
        raise InvalidURL("the way there")
