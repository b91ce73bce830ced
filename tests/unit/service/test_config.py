"""Configuration files: every mistake is named with file, key path, reason and fix."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from penstock.base.sockets import join_host_port, split_host_port
from penstock.service import (
    ConfigError,
    ExitCode,
    HostPort,
    HostPorts,
    check_only,
    load_config,
    show_config,
)
from penstock.service.config import hide_secrets, mapping_of
from penstock.service.config_types import Form


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Nats(_Section):
    url: str = "nats://127.0.0.1:4222"
    password: SecretStr | None = None


class _File(_Section):
    type: Literal["file"]
    include: list[str]


class _Unix(_Section):
    type: Literal["unix"]
    path: Path


_Topic = Annotated[str, Form(r"^[a-z{}]{1,9}$", "1 to 9 characters of a-z { }, as in {kind}")]


class _Config(_Section):
    name: str
    admin: HostPort = "127.0.0.1:0"
    log: HostPorts = "127.0.0.1:1"
    nats: _Nats = _Nats()
    limit: int = 5
    sources: list[Annotated[_File | _Unix, Field(discriminator="type")]] = []
    full: Literal["block", "drop"] | dict[Literal["logs"], Literal["block", "drop"]] = "block"
    labels: dict[str, str] = {}
    rest: dict[str, Any] = {}
    pair: list[int] = Field(default=[1, 2], min_length=2)
    topics: dict[_Topic, _Topic | None] = {}

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if self.name == "twice":
            msg = "name: two have it"
            raise ValueError(msg)
        return self


def _load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> _Config:
    path = tmp_path / "app.yaml"
    path.write_text(text)
    return load_config(_Config, path, env_prefix="APP", environ=environ or {})


def _mistake(tmp_path: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    assert caught.value.exit_code is ExitCode.CONFIG
    assert str(tmp_path / "app.yaml") in caught.value.reason
    return caught.value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://user:hush@a:4222", "nats://**********@a:4222"),
        ("nats://hush@a:4222,tls://b:hush@c:1", "nats://**********@a:4222,tls://**********@c:1"),
        ("https://u:hush@[::1]:1/metrics", "https://**********@[::1]:1/metrics"),
        ("https://h/m?key=hush&x=1#part", "https://h/m?key=**********&x=**********#part"),
        ("jdbc:postgresql://h/d?user=a&password=hush", "jdbc:postgresql://h/d?user=*&password=*"),
        ("jdbc:sqlserver://h:1;user=a;password=hush;x=y", "jdbc:sqlserver://h:1;user=a;password=*;x=y"),
        ("jdbc:oracle:thin:@h:1/s;password=hush", "jdbc:oracle:thin:@h:1/s;password=*"),
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("the token=(.*) of a line", "the token=(.*) of a line"),
        ("user@example.org", "user@example.org"),
    ],
)  # fmt: skip
def test_a_shown_configuration_has_no_secrets_of_urls(text: str, shown: str) -> None:
    shown = shown.replace("=*", "=**********") if "**********" not in shown else shown
    assert hide_secrets(text) == shown
    rendered = show_config(_Config(name="n", nats=_Nats(url=text)))
    assert "hush" not in rendered


def test_a_file_becomes_the_model(tmp_path: Path) -> None:
    config = _load(tmp_path, "name: a\nsources: [{type: unix, path: /run/x}]\n")
    assert config.sources == [_Unix(type="unix", path=Path("/run/x"))]


def test_several_addresses_are_joined_by_commas(tmp_path: Path) -> None:
    assert _load(tmp_path, "name: a\nlog: a:1, b:2\n").log == "a:1, b:2"
    assert "HOST:PORT" in _mistake(tmp_path, "name: a\nlog: a:1,b\n").reason


def test_an_environment_variable_overrides_one_key(tmp_path: Path) -> None:
    environ = {"APP__NATS__URL": "nats://b:1", "APP__LIMIT": "8", "APPLE__NAME": "x"}
    config = _load(tmp_path, "name: a\nnats: {url: 'nats://a:1'}\n", environ)
    assert (config.nats.url, config.limit, config.name) == ("nats://b:1", 8, "a")


def test_variables_stand_in_texts_wherever_they_are(tmp_path: Path) -> None:
    text = (
        "name: ${NAME}-${ZONE:-eu}\nlimit: ${LIMIT}\nnats: {password: '${WORD}'}\n"
        "sources: [{type: file, include: ['$${NAME}', '${DIR:-/var}/*.log', '$5']}]\n"
    )
    word = "x: [1]\nname: other"
    config = _load(tmp_path, text, {"NAME": "a", "LIMIT": "8", "WORD": word, "DIR": ""})
    assert (config.name, config.limit) == ("a-eu", 8)
    assert config.nats.password is not None
    assert config.nats.password.get_secret_value() == word, "a value adds no keys"
    assert isinstance(config.sources[0], _File)
    assert config.sources[0].include == ["${NAME}", "/var/*.log", "$5"]
    assert word not in show_config(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: ${NAME}\n", "name: the variable NAME is not set"),
        ("name: n\nsources: [{type: file, include: [a, 'x${NAME}']}]\n",
         "sources.0.include.1: the variable NAME is not set"),
        ("name: ${}\n", "name: ${} names no variable"),
    ],
)  # fmt: skip
def test_a_variable_that_is_not_set_is_a_mistake(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    assert f"app.yaml: {said}" in str(raised.value)
    assert raised.value.exit_code is ExitCode.CONFIG


def test_files_and_variables_stand_for_values_of_every_type(tmp_path: Path) -> None:
    for name, held in {"name": "a\n", "limit": "8\n", "include": "/var/*.log\n"}.items():
        (tmp_path / name).write_text(held)
    text = (
        f"name: {{file: {tmp_path}/name}}\nlimit: {{file: {tmp_path}/limit}}\n"
        "full: {env: FULL}\nlog: {env: LOG}\nadmin: {env: ADMIN}\n"
        f"sources: [{{type: unix, path: {{env: SOCKET}}}},"
        f" {{type: file, include: [x, {{file: {tmp_path}/include}}]}}]\n"
    )
    environ = {"FULL": "drop", "LOG": "hidden:1", "ADMIN": "h:2", "SOCKET": "/run/x"}
    environ["APP__NATS__URL"] = "{env: URL}"
    config = _load(tmp_path, text, environ | {"URL": "nats://b:1"})
    assert (config.name, config.limit, config.full, config.admin) == ("a", 8, "drop", "h:2")
    assert (config.log, config.nats.url) == ("hidden:1", "nats://b:1")
    assert config.sources == [
        _Unix(type="unix", path=Path("/run/x")), _File(type="file", include=["x", "/var/*.log"]),
    ]  # fmt: skip
    shown = show_config(config)
    assert "hidden" not in shown
    again = _load(tmp_path, shown, environ | {"URL": "nats://b:1"})
    assert again == config, "what is shown is the configuration, by its references"
    (tmp_path / "limit").write_text("9")
    assert _load(tmp_path, shown, environ | {"URL": "nats://b:1"}).limit == 9


def test_a_mapping_of_the_model_stays_what_it_is(tmp_path: Path) -> None:
    text = "name: n\nlabels: {file: /none}\nrest: {a: {env: NOT_SET}}\n"
    config = _load(tmp_path, text)
    assert (config.labels, config.rest) == ({"file": "/none"}, {"a": {"env": "NOT_SET"}})
    labels = _load(tmp_path, "name: n\nlabels: {env: {env: HOST}}\n", {"HOST": "h"}).labels
    assert labels == {"env": "h"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: {file: /none/x}", "name: /none/x: cannot be read: No such file"),
        ("name: {file: ~/x}", "name: ~/x: cannot be read: '~/x' begins with ~"),
        ("name: {file: BINARY}", "name: BINARY: cannot be read: BINARY is no text in UTF-8"),
        ("name: {env: NAME}", "name: the variable NAME is not set"),
        ("name: n\nsources: [{type: file, include: [a, {env: X}]}]",
         "sources.0.include.1: the variable X is not set"),
        ("name: {file: /x, more: 1}", "name: must be a text"),
        ("name: {env: 1}", "name: must be a text"),
        ("name: n\nnats: {file: /x}", "nats.file: there is no such key"),
        ("name: n\nlimit: {file: WORD}", "limit: must be an integer"),
    ],
)  # fmt: skip
def test_a_file_or_variable_that_gives_no_value_is_a_mistake(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "word").write_text("hush")
    files = {"BINARY": f"{tmp_path}/binary", "WORD": f"{tmp_path}/word"}
    for name, path in files.items():
        text, said = text.replace(name, path), said.replace(name, path)
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, text)
    assert f"app.yaml: {said}" in raised.value.reason
    assert "hush" not in str(raised.value)
    assert raised.value.exit_code is ExitCode.CONFIG


def test_an_unknown_key_names_the_known_ones(tmp_path: Path) -> None:
    mistake = _mistake(tmp_path, "name: a\nnats: {uri: x}\n")
    assert "nats.uri" in mistake.reason
    assert "known keys here: password, url" in mistake.fix


def test_an_unknown_key_is_not_taken_for_one_that_is_hardly_alike(tmp_path: Path) -> None:
    mistake = _mistake(tmp_path, "name: a\nadmit: nowhere\nlist: nowhere\n")
    assert "admit: there is no such key; did you mean admin?" in mistake.reason
    assert "list: there is no such key\n" in f"{mistake.reason}\n"


def test_an_unknown_key_in_a_list_names_the_known_ones_of_its_type(tmp_path: Path) -> None:
    mistake = _mistake(tmp_path, "name: a\nsources: [{type: file, include: [], includ: 1}]\n")
    assert "sources.0.includ: there is no such key; did you mean include?" in mistake.reason
    assert "known keys here: include, type" in mistake.fix


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    mistake = _mistake(tmp_path, "limit: many\nadmin: nowhere\n")
    assert [line.split(": ")[1] for line in mistake.reason.splitlines()] == [
        "name", "admin", "limit",
    ]  # fmt: skip
    assert "name: add the key" in mistake.fix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("full: drop_all", "full: must be 'block' or 'drop', or must be a mapping"),
        ("full: {spans: drop}", "full.spans: the key must be 'logs'"),
        ("full: {logs: all}", "full.logs: must be 'block' or 'drop'"),
        (
            "sources: [{type: fil}]",
            "sources.0: there is no type 'fil', only file, unix; did you mean file?",
        ),
        ("sources: [{type: zz}]", "sources.0: there is no type 'zz', only file, unix"),
        ("sources: [{type: unix, path: 5}]", "sources.0.path: must be a path"),
        ("pair: [1]", "pair: must have at least 2 items, not 1"),
        ("sources: [{path: x}]", "sources.0: `type` is missing"),
        ("sources: [{type: unix}]", "sources.0.path: is missing"),
        ("sources: [{type: file, include: x}]", "sources.0.include: must be a list"),
        ("sources: {type: file}", "sources: must be a list"),
        ("nats: true", "nats: must be a mapping"),
        ("limit: 1GiB", "limit: must be an integer"),
        ("name: twice", "name: two have it"),
        ("topics: {a: B}", "topics.a: must be 1 to 9 characters of a-z { }, as in {kind}\n"),
        ("topics: {A: b}", "topics.A: the key must be 1 to 9 characters of a-z { }, as in {kind}"),
        ("topics: {a: 1}", "topics.a: must be a text"),
    ],
)
def test_a_mistake_is_said_in_the_words_of_the_file(tmp_path: Path, text: str, said: str) -> None:
    text = text if text.startswith("name") else f"name: a\n{text}"
    mistake = _mistake(tmp_path, text)
    assert f"app.yaml: {said}" in f"{mistake.reason}\n"
    assert "literal[" not in f"{mistake.reason}{mistake.fix}"


def test_a_tab_is_named_with_what_stands_in_its_place(tmp_path: Path) -> None:
    mistake = _mistake(tmp_path, "name: a\nnats:\n\turl: x\n")
    assert "app.yaml:3:1: not valid YAML" in mistake.reason
    assert mistake.fix == "indent with spaces, never tabs"


def test_a_variable_that_yaml_takes_for_a_mapping_is_said_to_need_quotes(tmp_path: Path) -> None:
    mistake = _mistake(tmp_path, "name: a\nsources:\n  - {type: unix, path: ${HOME}}\n")
    assert "app.yaml:3:25: not valid YAML" in mistake.reason
    assert mistake.fix == 'put quotes around what has ${...}, as in {token: "${TOKEN}"}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name: [", "not valid YAML"),
        ("name: a\nname: b\n", "'name' is repeated"),
        ('name: "a\\ud800"', "1:7: not valid YAML: half a character"),
        ("? [a]\n: 1\n", "1:3: not valid YAML: a key is a list or mapping"),
        ("nats: &n {url: *n}\n", r"1:16: not valid YAML: \*n is in what it stands for"),
        ("sources: &s\n  - [*s]\n", r"2:6: not valid YAML: \*s is in what it stands for"),
        (f"name: {'[' * 3000}{']' * 3000}", "not valid YAML: more than 100 levels"),
        ("- name\n", "the top level is a list"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        _load(tmp_path, text)


PIECES = st.sampled_from([
    *"{}[]:,-#&*!|>'\"%@` \n\t?~x1\\", "\n- ", "\n  b: ", ": ", "- ", "a: 1\n", "c: [1, e&]\n", "é",
    "<<: *a", "&a ", "*a", "!!str ", "|\n  x\n", ">#\n y\n", "\ufeff", "0x1f", "1:30", "2020-01-01",
])  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
@settings(max_examples=300)
@example("x: |# c\n  y\n")
@example("x: >-1#\n  y\n")
@example("x:\ty")
@example("x: [a?]")
@example("x: !")
def test_a_file_means_the_same_to_both_parsers(text: str) -> None:
    """A comment that is not ASCII leaves a text to the parser in Python."""

    def read(text: str) -> dict[str, Any] | None:
        try:
            return mapping_of(text, Path("app.yaml"))
        except ConfigError:
            return None

    assert repr(read(f"# a\n{text}")) == repr(read(f"# é\n{text}"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(_Config, tmp_path / "none.yaml", env_prefix="APP", environ={})


def test_secrets_stay_hidden(tmp_path: Path) -> None:
    config = _load(tmp_path, "name: a\nnats: {password: hunter2}\n")
    shown = show_config(config)
    assert "hunter2" not in shown + repr(config)
    assert check_only(config, tmp_path / "app.yaml").startswith(f"# {tmp_path}/app.yaml is valid")


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:9", "logd.example:65535"])
def test_addresses_are_host_and_port(tmp_path: Path, address: str) -> None:
    config = _load(tmp_path, f"name: a\nadmin: '{address}'\n")
    host, port = split_host_port(config.admin)
    assert f"{host}:{port}" == address.replace("[", "").replace("]", "")


@pytest.mark.parametrize("address", ["127.0.0.1", ":80", "a:65536", "a b:1", "::1:9"])
def test_other_addresses_are_refused(tmp_path: Path, address: str) -> None:
    assert "HOST:PORT" in _mistake(tmp_path, f"name: a\nadmin: '{address}'\n").reason


@pytest.mark.parametrize("address", ["127.0.0.1:80", "[::1]:80", "localhost:0"])
def test_an_address_is_joined_as_it_was_split(address: str) -> None:
    """An IPv6 address keeps its brackets."""
    assert address == join_host_port(*split_host_port(address))
