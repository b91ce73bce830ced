"""Each option of a stream is declared once; every door that users come by knows it from there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from penstock.logd.cli.main import cli
from penstock.logd.config import LogdConfig
from penstock.logd.errors import RefusedError
from penstock.logd.liftbridge.create_stream import DECIDED_HERE, settings_of
from penstock.logd.metadata.option import Change
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.streams import StreamConfig
from penstock.logd.stream_options import StreamOption, altered, split_settings, stream_options
from penstock.logd.wire import logd_liftbridge_pb2 as wire
from penstock.service import load_config
from tests.support.cli_commands import all_commands

ROOT: Final = Path(__file__).resolve().parents[3]
NAMED: Final = {"name": "logs", "subject": "t.>", "ack_on_reply": False}
OPTIONS: Final = {option.name: option for option in stream_options()}


def of(*changes: Change) -> Iterator[str]:
    return (name for name, option in OPTIONS.items() if option.option.change in changes)


def other_value(option: StreamOption) -> Any:
    """A value that is not the default, and within the bounds."""
    if option.kind is bool:
        return not option.default
    if option.choices and option.kind is not int:
        return next(one for one in option.choices if one != option.default)
    if option.kind is int:
        least = option.least or 1
        return least if least != option.default else least + 1
    return "other"


def document(name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    found: dict[str, Any] = {outer: {inner: value} if inner else value}
    needed = {"retention": {"messages": 5}} if found == {"discard": "new"} else {}
    return {**NAMED, **needed, **found}


def value_of(name: str, config: StreamConfig, options: Any) -> Any:
    outer, _, inner = name.partition(".")
    found = getattr(config if hasattr(config, outer) else options, outer)
    return getattr(found, inner) if inner else found


@pytest.mark.parametrize("name", [*of(Change.ALTER, Change.CREATE, Change.MODE)])
def test_a_configuration_file_and_a_request_take_every_option(name: str, tmp_path: Path) -> None:
    value = NAMED.get(name) if name in ("name", "subject") else other_value(OPTIONS[name])
    wanted = document(name, value)
    file = tmp_path / "logd.yaml"
    file.write_text(yaml.safe_dump({"data_dir": str(tmp_path / "data"), "streams": [wanted]}))
    (stream,) = load_config(LogdConfig, file, env_prefix="PENSTOCK_LOGD").streams
    assert value_of(name, stream.stream_config(), stream.replication()) == value
    assert value_of(name, *split_settings(wanted)) == value


@pytest.mark.parametrize("name", [*of(*Change)])
def test_what_may_be_altered_is_altered_and_the_rest_is_refused(name: str) -> None:
    option, three = OPTIONS[name], ReplicationOptions(replication_factor=3)
    before = split_settings(NAMED)[0]
    value = other_value(option)
    changes = {key: one for key, one in document(name, value).items() if key not in NAMED}
    if name in NAMED:
        changes = {name: value}
    if option.option.change in (Change.ALTER, Change.MODE):
        assert value_of(name, *altered(before, three, changes)) == value
    else:
        with pytest.raises(RefusedError) as refused:
            altered(before, three, changes)
        assert refused.value.detail["key"] == name


def parameters(command: str) -> dict[str, click.Option]:
    group = dict(all_commands(cli))["streams"]
    assert isinstance(group, click.Group)
    return {
        found.opts[0].removeprefix("--"): found
        for found in group.commands[command].params
        if isinstance(found, click.Option)
    }


@pytest.mark.parametrize("name", [*of(*Change)])
def test_the_command_line_has_every_option_that_is_set_there(name: str) -> None:
    option = OPTIONS[name]
    for command, changes in (
        ("create", (Change.ALTER, Change.CREATE)),
        ("alter", (Change.ALTER,)),
    ):
        found = parameters(command).get(option.parameter)
        if name in ("name", "subject"):  # arguments, or what must be given
            continue
        assert (found is not None) is (option.option.change in changes)
        if found is not None:
            assert found.help == option.option.meaning.replace("`", "")
            if option.choices and option.kind is not int:
                assert isinstance(found.type, click.Choice)
                assert tuple(found.type.choices) == option.choices


def test_every_field_of_liftbridges_request_is_an_option_or_decided_here() -> None:
    fields = {field.name for field in wire.CreateStreamRequest.DESCRIPTOR.fields}
    mapped = [option.option.liftbridge for option in OPTIONS.values() if option.option.liftbridge]
    assert sorted([*mapped, *DECIDED_HERE, "name", "subject"]) == sorted(fields)


@pytest.mark.parametrize(
    "name", [name for name, option in OPTIONS.items() if option.option.liftbridge]
)
def test_liftbridge_gives_the_options_it_has(name: str) -> None:
    option = OPTIONS[name]
    value = other_value(option)
    asked = value * 1000 - 1 if name.endswith("_s") else value
    if option.choices and option.kind is not int:
        asked = True
    request = wire.CreateStreamRequest(name="logs", subject="t.>")
    field = getattr(request, option.option.liftbridge)
    if hasattr(field, "value"):
        field.value = asked
    else:
        given: dict[str, Any] = {option.option.liftbridge: asked}
        request.MergeFrom(wire.CreateStreamRequest(**given))
    assert value_of(name, *split_settings(settings_of(request))) == value


def test_liftbridge_has_a_replica_on_every_node_and_sizes_within_the_bounds() -> None:
    request = wire.CreateStreamRequest(name="logs", subject="t.>", replicationFactor=-1)
    request.segmentMaxBytes.value = 1
    request.retentionMaxBytes.value = 1
    config, replication = split_settings(settings_of(request))
    assert replication.replication_factor == "all"
    assert config.max_segment_bytes == OPTIONS["max_segment_bytes"].least
    assert config.retention.bytes == OPTIONS["retention.bytes"].least
    request.segmentMaxBytes.value = 1 << 62
    assert split_settings(settings_of(request))[0].max_segment_bytes == 1 << 30


@pytest.mark.parametrize("name", [*of(*Change)])
def test_every_option_says_what_it_means_in_its_page(name: str) -> None:
    meaning = OPTIONS[name].option.meaning
    assert meaning.endswith(".")
    page = (ROOT / "docs" / "logd" / "configuration.md").read_text()
    assert f"| `{name}` |" in page
    assert meaning in page
