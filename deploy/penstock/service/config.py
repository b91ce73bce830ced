"""Configuration: one YAML file plus environment variables, checked by a pydantic model.

An environment variable overrides one key. Its name is a prefix, then the key path joined by two
underscores: with the prefix ``PENSTOCK_LOGD``, ``PENSTOCK_LOGD__NATS__URL`` sets ``nats.url``. Its
value is read as YAML, so ``8`` is a number and ``[a, b]`` a list.

Inside texts of the file ``${NAME}`` stands for a variable's value, ``${NAME:-default}`` for a
default where it is empty or not set, and ``$${`` for ``${``. They are replaced after YAML was read:
a value is a text, whatever it contains, and adds no keys. A variable that is not set is an error.

In the place of a text, number or boolean ``{file: PATH}`` stands for what a file holds and
``{env: NAME}`` for a variable, without white space around it. The type of the key in the model
decides: where a mapping may stand, ``{file: …}`` is a mapping. They are read when the configuration
is loaded; secrets (`penstock.service.config_types`) are read each time that they are used.
"""

import os
import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ValidationError
from typing_extensions import override
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from penstock.base.daemon_imports import without_plugins
from penstock.base.errors import ConfigError
from penstock.service.config_errors import describe_errors
from penstock.service.config_types import (
    absolute,
    check_path_text,
    read_file,
    read_variable,
    secrets_of,
)

Model = TypeVar("Model", bound=BaseModel)

_LEVELS_MAX: Final = 100
"""Nesting of a file: far above what any key needs, and below Python's own bound."""
_VARIABLE: Final = re.compile(
    r"\$(?P<escaped>\$)?\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)?(?::-(?P<default>[^}]*))?\}"
)
_HOST_PORT = re.compile(r"^(?P<host>[^:\s]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})$")


def _check_host_port(value: str) -> str:
    match = _HOST_PORT.match(value)
    if match is None or int(match["port"]) > 65_535:
        msg = "must be HOST:PORT with a port from 0 to 65535, as in 127.0.0.1:9293"
        raise ValueError(msg)
    return value


HostPort = Annotated[str, AfterValidator(_check_host_port)]
"""A listening or remote address, ``HOST:PORT``; IPv6 hosts in brackets; port 0 means any free."""


def _check_host_ports(value: str) -> str:
    for address in value.split(","):
        _check_host_port(address.strip())
    return value


HostPorts = Annotated[str, AfterValidator(_check_host_ports)]
"""Several remote addresses, each a `HostPort`, joined by commas."""


def load_config(
    model: type[Model],
    path: Path,
    *,
    env_prefix: str,
    environ: Mapping[str, str] | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Model:
    """Read, override and check a configuration file.

    Args:
        model: The pydantic model; it should forbid extra keys.
        path: The YAML file.
        env_prefix: Prefix of the environment variables that override keys.
        environ: The environment; the process's own by default.
        changes: Keys that the command line sets; they override all others.

    Raises:
        ConfigError: With file, key path, reason and fix for every error found.
    """
    environment = os.environ if environ is None else environ
    document = with_variables(read_yaml(path), environment, path)
    override_from(environment, document, env_prefix)
    return check_document(model, document | dict(changes), path, environ=environment)


def with_variables(
    document: dict[str, Any],
    environ: Mapping[str, str],
    path: Path,
    *,
    allowed: Collection[str] | None = None,
) -> dict[str, Any]:
    """A document with the values of variables in its texts.

    Args:
        document: The document that YAML holds.
        environ: The environment.
        path: The file's path, for messages.
        allowed: The names that may be used; None: any.

    Raises:
        ConfigError: A variable is not set, or may not be used.
    """

    def value_of(match: re.Match[str], where: str) -> str:
        if match["escaped"]:
            return match[0][1:]
        name = match["name"]
        if name is None or (allowed is not None and name not in allowed):
            known = _NOT_LISTED if name else "it has no name"
            raise ConfigError(
                f"{path}: {where}: {match[0]} names no variable that may be used here: {known}",
                fix=f"add {name or 'its name'} to `environment`, or write $${{ for the characters",
            )
        value = environ.get(name)
        if not value and match["default"] is not None:
            value = match["default"]
        if value is None:
            raise ConfigError(
                f"{path}: {where}: the variable {name} is not set",
                fix=f"set it, or give a default: ${{{name}:-value}}; $${{ is for the characters",
            )
        return value

    def replaced(value: Any, key: str) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(lambda match: value_of(match, key), value)
        if isinstance(value, list):
            return [replaced(each, f"{key}.{number}") for number, each in enumerate(value)]
        if isinstance(value, dict):
            inner = f"{key}." if key else ""
            return {name: replaced(each, f"{inner}{name}") for name, each in value.items()}
        return value

    found: dict[str, Any] = replaced(document, "")
    return found


def override_from(environ: Mapping[str, str], document: dict[str, Any], prefix: str) -> None:
    """Set the keys of a document that variables with the prefix name.

    Raises:
        ConfigError: A value is no YAML.
    """
    for name, text in sorted(environ.items()):
        if name.startswith(f"{prefix}__"):
            keys = [key.lower() for key in name.removeprefix(f"{prefix}__").split("__")]
            _override(document, keys, _parse(text, Path(f"${name}")))


def check_document(
    model: type[Model],
    document: dict[str, Any],
    path: Path,
    *,
    environ: Mapping[str, str] | None = None,
    allowed: Collection[str] | None = None,
) -> Model:
    """Check what a file, or several, said, with the values of references in their places.

    Args:
        model: The pydantic model; it should forbid extra keys.
        document: The document that YAML holds; references in it are replaced.
        path: The file's path, for messages.
        environ: The environment; the process's own by default.
        allowed: The names of variables that may be used; None: any.

    Raises:
        ConfigError: With `path`, key path, reason and fix for every error found.
    """
    environment = os.environ if environ is None else environ
    references: dict[_Place, dict[str, str]] = {}
    while True:
        try:
            with without_plugins():  # a model is built as it is used for the first time
                config = model.model_validate(document)
        except ValidationError as error:
            found = dict(_references(error, document))
            if found:  # fewer each time, for a text takes the place of each
                for place, reference in found.items():
                    _put(document, place, _value_of(reference, place, environment, path, allowed))
                references |= found
                continue
            lines, fixes = describe_errors(error, model, document)
            raise ConfigError(
                "\n".join(f"{path}: {line}" for line in lines), fix="; ".join(fixes)
            ) from None
        for key, secret in secrets_of(config):
            if secret.env is not None:
                _expect_listed(secret.env, f"{path}: {key}", allowed)
        # Beside the fields, as values of cached properties are: it is no part of what was said.
        config.__dict__[_REFERENCES] = references
        return config


_Place = tuple[int | str, ...]
"""Keys and numbers in lists, from the top of a document."""

_REFERENCES: Final = "_penstock_references"
_NOT_LISTED: Final = "`environment` lists no such name"
_A_SCALAR_IS_WANTED: Final = frozenset(
    f"{kind}_type"
    for kind in ("bool", "date", "datetime", "decimal", "float", "int", "path", "string", "url")
) | {"enum", "literal_error", "time_delta_type"}
"""pydantic's errors where a mapping stands in the place of another value."""


def _references(
    error: ValidationError, document: dict[str, Any]
) -> Iterator[tuple[_Place, dict[str, str]]]:
    """Mappings `{file: PATH}` and `{env: NAME}` where the model takes none, and their places."""
    for detail in error.errors(include_url=False, include_context=False):
        if detail["type"] not in _A_SCALAR_IS_WANTED:
            continue
        node: Any = document
        place: list[int | str] = []
        for part in detail["loc"]:
            is_in_list = isinstance(node, list) and isinstance(part, int) and part < len(node)
            if is_in_list or (isinstance(node, dict) and part in node):
                place.append(part)
                node = node[part]
        match node:
            case {"file": str(), **rest} | {"env": str(), **rest} if not rest:
                yield tuple(place), node


def _value_of(
    reference: Mapping[str, str],
    place: _Place,
    environ: Mapping[str, str],
    path: Path,
    allowed: Collection[str] | None,
) -> str:
    """Return the present value of a file or a variable."""
    where = f"{path}: {'.'.join(map(str, place))}"
    name = reference.get("env")
    if name is not None:
        _expect_listed(name, where, allowed)
    try:
        if name is not None:
            return read_variable(name, environ)
        return read_file(Path(absolute(check_path_text(reference["file"]))))
    except (OSError, ValueError) as error:
        what = "" if name is not None else f"{reference['file']}: cannot be read: "
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        fix = "set it" if name is not None else "name a readable file with a text in UTF-8"
        raise ConfigError(f"{where}: {what}{why}", fix=fix) from None


def _expect_listed(name: str, where: str, allowed: Collection[str] | None) -> None:
    if allowed is not None and name not in allowed:
        raise ConfigError(f"{where}: {_NOT_LISTED}: {name}", fix=f"add {name} to `environment`")


def _put(document: Any, place: _Place, value: Any) -> None:
    """Set what is at a place, or what holds it where the model made another value of that."""
    for part, following in pairwise(place):
        inner = document[part]
        has_more = isinstance(inner, dict) or (
            isinstance(inner, list) and isinstance(following, int) and following < len(inner)
        )
        if not has_more:
            document[part] = value
            return
        document = inner
    document[place[-1]] = value


def show_config(config: BaseModel) -> str:
    """Render the effective configuration as YAML.

    Secrets, also those in URLs, are hidden. What was read from a file or a variable is shown by its
    reference.
    """
    document = config.model_dump(mode="json", by_alias=True)
    for place, reference in config.__dict__.get(_REFERENCES, {}).items():
        _put(document, place, dict(reference))
    return yaml.safe_dump(_without_secrets(document), sort_keys=False, allow_unicode=True)


def hide_secrets(text: str) -> str:
    """A text without what URLs in it may hold of secrets: user information and values of a query.

    In a URL, values of `password=`, `token=` and the like are hidden wherever they stand, for JDBC
    drivers separate them by semicolons.
    """
    if "://" not in text and not text.startswith("jdbc:"):
        return text
    text = _USER_INFORMATION.sub(f"{HIDDEN}@", text)
    text = _QUERY.sub(lambda found: _VALUE.sub(f"={HIDDEN}", found[0]), text)
    return _NAMED_SECRET.sub(rf"\1={HIDDEN}", text)


def _without_secrets(value: Any) -> Any:
    match value:
        case str():
            return hide_secrets(value)
        case dict():
            return {key: _without_secrets(inner) for key, inner in value.items()}
        case list():
            return [_without_secrets(inner) for inner in value]
        case _:
            return value


def check_only(config: BaseModel, path: Path) -> str:
    """Say that a configuration is valid and what it amounts to."""
    return f"# {path} is valid; the effective configuration:\n{show_config(config)}"


HIDDEN: Final = "**********"
"""The text shown for a `SecretStr`."""

_USER_INFORMATION: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY: Final = re.compile(r"\?[^#\s]*")
_VALUE: Final = re.compile(r"=[^&;]*")
_NAMED_SECRET: Final = re.compile(
    r"(?i)\b((?:[a-z0-9_.-]*[_.-])?(?:password|passwd|pwd|token|secret|api_?key|access_?key))"
    r"\s*=\s*(?!\*)[^;&,\s]+"
)

_HALVES: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Characters that no text holds; the others of their kind are bytes of names of files (PEP 383)."""


class _Strict(Composer, SafeConstructor):
    """YAML 1.1 as `SafeLoader` reads it, without what no configuration can be meant to say.

    A repeated key is an error, where the last one would win. So are a key that is no plain value,
    something that holds itself, and more than `_LEVELS_MAX` levels, which end in Python's own
    errors, and half of a surrogate pair, which could not be sent.
    """

    def __init__(self) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        self._open: list[str | None] = []

    @override
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined] # the parser's
        problem = ""
        if len(self._open) >= _LEVELS_MAX:
            problem = f"more than {_LEVELS_MAX} levels"
        elif isinstance(event, yaml.AliasEvent) and event.anchor in self._open:
            problem = f"*{event.anchor} is in what it stands for"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self._open.append(None if isinstance(event, yaml.AliasEvent) else event.anchor)
        node = super().compose_node(parent, index)
        self._open.pop()
        return node

    @override
    def construct_scalar(self, node: Any) -> Any:
        value: str = super().construct_scalar(node)
        if _HALVES.search(value):
            raise yaml.MarkedYAMLError(
                problem="half a character, which no text may hold", problem_mark=node.start_mark
            )
        return value

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(
                    problem="a key is a list or mapping", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is repeated", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_READ_OTHERWISE: Final = re.compile(r"[^\n -~]|[!%&?]|[|>][-+0-9]*#")
"""What libyaml accepts where PyYAML's parser refuses it, or takes for something else: tabs, line
ends and byte order marks beyond ASCII, tags without a name, ``a&`` and ``a?`` in brackets, and a
comment that touches the beginning of a block. Such a text has the same meaning everywhere by being
read in Python."""


class _Loader(_Strict, Reader, Scanner, Parser, Resolver):
    """Parses in Python."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)
        _Strict.__init__(self)
        Resolver.__init__(self)


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined] # a gap of its stubs

    class _FastLoader(_Strict, CParser, Resolver):
        """Parses with libyaml: 5,000 streams in 0.15 s, where the other one takes 0.55."""

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            _Strict.__init__(self)
            Resolver.__init__(self)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty when it has nothing in it.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    return mapping_of(read_text(path), path)


def read_text(path: Path) -> str:
    """Read a configuration file.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror or error}",
            fix="name an existing, readable YAML file",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 at byte {error.start}", fix="save the file as UTF-8"
        ) from None


def mapping_of(text: str, path: Path) -> dict[str, Any]:
    """The mapping that a file's text is; `path` is for messages.

    Raises:
        ConfigError: It is something else.
    """
    document = _parse(text, path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(
            f"{path}: the top level is a {type(document).__name__}, not a mapping",
            fix="start the file with keys such as `nats:`",
        )
    return document


def _parse(text: str, path: Path) -> Any:
    if yaml.__with_libyaml__ and not _READ_OTHERWISE.search(text):
        with suppress(yaml.YAMLError):  # what it refuses, the other one accepts or explains
            return _FastLoader(text).get_single_data()
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        fix = "correct the YAML"
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        if r"'\t'" in problem:
            fix = "indent with spaces, never tabs"
        elif mark and any("${" in line for line in text.splitlines()[mark.line : mark.line + 1]):
            fix = 'put quotes around what has ${...}, as in {token: "${TOKEN}"}'
        raise ConfigError(f"{where}: not valid YAML: {problem}", fix=fix) from None


def _override(document: dict[str, Any], keys: list[str], value: Any) -> None:
    *parents, last = keys
    for key in parents:
        child = document.setdefault(key, {})
        if not isinstance(child, dict):
            child = document[key] = {}
        document = child
    document[last] = value


OCTAL: Final = "octal integer"
"""The `format` of a number in a schema that people write in octal digits, as a file's mode."""


def option_lines(model: type[BaseModel]) -> Iterator[str]:
    """Return a model's purpose under its `type`, then a line for each key and nested key."""
    schema = model.model_json_schema()
    yield f"{schema['properties']['type']['const']}: {schema['description']}"
    yield from _keys(schema, schema, "", {})


def _keys(
    node: dict[str, Any], schema: dict[str, Any], prefix: str, defaults: Mapping[str, Any]
) -> Iterator[str]:
    """Lines for the keys of a section; `defaults` are those of its place, before its class's."""
    for key, own in node["properties"].items():
        if prefix == "" and key == "type":
            continue
        facts = own | ({"default": defaults[key]} if key in defaults else {})
        needed = key in node.get("required", ())
        default = "required" if needed else f"default {show_value(facts.get('default'), facts)}"
        more = facts.get("description", "")
        line = f"    {prefix + key:24} {_kind(facts, schema):24} {default}"
        yield f"{line}  {more}".rstrip()
        inner = next((s for s in _variants(facts, schema) if "properties" in s), None)
        if inner is not None:
            yield from _keys(inner, schema, f"{prefix}{key}.", facts.get("default") or {})


def _kind(facts: dict[str, Any], schema: dict[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_kind_of(one) for one in _variants(facts, schema)))


def _kind_of(facts: dict[str, Any]) -> str:
    if "enum" in facts:
        return " or ".join(map(str, facts["enum"]))
    if facts.get("type") == "array":
        return "list"
    if facts.get("type") == "null":
        return "none"
    if "const" in facts:
        return str(facts["const"])
    low, high = facts.get("minimum"), facts.get("maximum")
    ends = ("" if end is None else show_value(end, facts) for end in (low, high))
    limits = f" {'..'.join(ends)}"
    return str(facts.get("type", "value")) + (limits if (low, high) != (None, None) else "")


def _variants(facts: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in facts:
        return [schema["$defs"][facts["$ref"].rsplit("/", 1)[1]]]
    return (
        [one for given in facts["anyOf"] for one in _variants(given, schema)]
        if ("anyOf" in facts)
        else [facts]
    )


def show_value(value: Any, facts: Mapping[str, Any]) -> str:
    """A default or a bound as people write it, by what a schema says of its key."""
    if facts.get("format") == OCTAL and value:
        return f"0{value:o}"
    return "none" if value is None else str(value)
