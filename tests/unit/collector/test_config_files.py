"""Several files, and values of the environment."""

from pathlib import Path

import pytest

from penstock.collector.config import CollectorConfig, load_collector_config
from penstock.service import ConfigError

BASE = "data_dir: /x\nsources: [{type: stdin, name: app}]\n"


def load(tmp_path: Path, *texts: str, **environ: str) -> CollectorConfig:
    paths = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        paths.append(path)
    return load_collector_config(paths, environ)


def test_files_are_merged_by_key_and_sources_joined(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        BASE + "nats: {url: 'nats://n:4222'}\n",
        "sources: [{type: host_metrics}]\nnats: {user: u}\n"
        "transforms: {f: {type: filter, inputs: [app], where: 'true'}}\n",
    )
    assert [source.name for source in config.sources] == ["app", "host_metrics"]
    assert (config.nats.url, config.nats.user) == ("nats://n:4222", "u")
    assert [*config.transforms] == ["f"]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("data_dir: /y", "data_dir"),
        ("data_dir: {a: 1}", "data_dir"),
        ("nats: {url: x}", "nats.url"),
    ],
)
def test_a_key_in_two_files_is_refused_with_both_names(tmp_path: Path, more: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, BASE + "nats: {url: 'nats://n:4222'}", more)
    assert str(caught.value).startswith(f"{tmp_path}/1.yaml: {key}: {tmp_path}/0.yaml sets it, too")


def test_allowed_variables_are_put_in_after_yaml_was_read(tmp_path: Path) -> None:
    text = BASE + (
        "environment: [REGION, WORD]\n"
        "nats: {password: '${WORD}'}\n"
        "subject_prefix: telemetry-${REGION:-eu}\n"
        "resource: {a: '$${WORD}', b: '$5', c: '${WORD:-x}'}\n"
    )
    config = load(tmp_path, text, WORD="x: [1]\nadmin: '0.0.0.0:1'", HOME="/root")
    assert config.nats.password is not None
    assert config.nats.password.read() == "x: [1]\nadmin: '0.0.0.0:1'"
    assert config.admin == "127.0.0.1:9295"
    assert config.subject_prefix == "telemetry-eu"
    assert config.resource == {"a": "${WORD}", "b": "$5", "c": "x: [1]\nadmin: '0.0.0.0:1'"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("${HOME}", "resource.a: ${HOME} names no variable"),
        ("${}", "names no variable"),
        ("${WORD}", "the variable WORD is not set"),
    ],
)
def test_other_variables_are_refused(tmp_path: Path, value: str, words: str) -> None:
    text = f"{BASE}environment: [WORD]\nresource: {{a: '{value}'}}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, HOME="/root")
    assert words in str(caught.value)


def test_variables_of_references_are_those_that_are_listed(tmp_path: Path) -> None:
    text = BASE + "environment: [WORD]\nsubject_prefix: {env: %s}\nresource: {file: /x}\n"
    config = load(tmp_path, text % "WORD", WORD="telemetry-eu", HOME="root")
    assert (config.subject_prefix, config.resource) == ("telemetry-eu", {"file": "/x"})
    with pytest.raises(ConfigError, match=r"subject_prefix: `environment` lists no such name: HO"):
        load(tmp_path, text % "HOME", HOME="root")
    secret = BASE + "environment: [WORD]\nnats: {token: {env: PATH}}\n"
    with pytest.raises(ConfigError, match=r"nats\.token: `environment` lists no such name: PATH"):
        load(tmp_path, secret)


def test_a_default_stands_for_a_variable_that_is_empty(tmp_path: Path) -> None:
    text = "environment: [A, B, C]\ndata_dir: /x\nsources: [{type: stdin, service: x}]\n"
    resource = "resource: {a: '${A:-eu}', b: 'x${B}', c: '${C:-}'}\n"
    config = load(tmp_path, text + resource, A="", B="")
    assert config.resource == {"a": "eu", "b": "x", "c": ""}


def test_without_a_list_of_names_every_variable_may_be_used(tmp_path: Path) -> None:
    text = BASE + "resource: {a: '${HOME}'}\n"
    assert load(tmp_path, text, HOME="/root").resource == {"a": "/root"}
    with pytest.raises(ConfigError, match=r"resource\.a: the variable HOME is not set"):
        load(tmp_path, text)


def test_overriding_variables_still_come_last(tmp_path: Path) -> None:
    config = load(tmp_path, BASE, PENSTOCK_COLLECTOR__SUBJECT_PREFIX="eu")
    assert config.subject_prefix == "eu"


def test_an_expressions_mistake_is_told_with_file_key_and_position(tmp_path: Path) -> None:
    transforms = "transforms: {f: {type: filter, inputs: [app], where: 'body > 3'}}\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, BASE + transforms)
    assert "0.yaml: transforms.f.where: at character 6:" in str(caught.value)
