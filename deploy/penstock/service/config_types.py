"""Paths in configurations: what no file can be named by is refused when they are read.

A path that is not absolute is of the directory that the process was started in, and is made
absolute here: what is kept of it, and what is shown, then holds wherever the next one is started.

One way to give a secret in every part's configuration: `text`, `{file: PATH}`, `{env: NAME}`.

Other values may be given so, too; `penstock.service.config` reads those, once, when it loads.

Sizes and durations in configurations, with the unit that a person would write.

A text that must have some form says which, in words, beside the pattern that checks it.

A key's name says its unit: `max_bytes` is in bytes, `timeout_s` in seconds, `poll_ms` in
milliseconds. Its value may be a number of these, or a text with a unit: `1GiB`, `10s`.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

_PATH_BYTES_MAX: Final = 4095
_NAME_BYTES_MAX: Final = 255
_SOCKET_BYTES_MAX: Final = 107
_VARIABLE: Final = re.compile(r"\$\{[^}/]*\}|\$[A-Za-z_][A-Za-z0-9_]*")
"""Bounds from limits.h and unix(7) of Linux."""


def check_path_text(text: str) -> str:
    """A text that a path, or a pattern of paths, may be.

    Raises:
        ValueError: No file can have such a name.
    """
    message = ""
    if not text:
        message = "must not be empty"
    elif "\0" in text:
        message = "must not hold the character NUL (\\0): no file's name does"
    elif len(os.fsencode(text)) > _PATH_BYTES_MAX:
        message = f"must have at most {_PATH_BYTES_MAX} bytes, as paths have"
    elif max(len(os.fsencode(part)) for part in text.split("/")) > _NAME_BYTES_MAX:
        message = f"must have at most {_NAME_BYTES_MAX} bytes from one slash to the next"
    if message:
        raise ValueError(message)
    return check_unexpanded(text)


def check_unexpanded(text: str) -> str:
    """A path, or a pattern of paths, that means what it says.

    Raises:
        ValueError: It has what a shell would expand, and no shell reads it.
    """
    if text.startswith("~"):
        raise ValueError(f"{text!r} begins with ~, which is not expanded: write the whole path")
    if variable := _VARIABLE.search(text):
        msg = f"{text!r} has {variable[0]}, which is not expanded: write the whole path"
        raise ValueError(msg)
    return text


def _check_text(value: Any) -> Any:
    """Before it is a `Path`, to which an empty text is the directory itself."""
    return check_path_text(value) if isinstance(value, str) else value


def _check_socket(path: Path) -> Path:
    if len(os.fsencode(path)) > _SOCKET_BYTES_MAX:
        msg = f"must have at most {_SOCKET_BYTES_MAX} bytes, as paths of sockets have: {path}"
        raise ValueError(msg)
    return path


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold the character NUL (\\0)")
    return text


NoNul = Annotated[str, AfterValidator(_check_no_nul)]
"""A text for the system, such as an argument of a program; it holds no NUL."""


def absolute(text: str, escape: Callable[[str], str] = str) -> str:
    """A path, or a pattern of paths, from the directory of the process, if it is relative.

    Args:
        text: The path, or the pattern.
        escape: Makes a pattern of a path.

    Raises:
        ValueError: It is, and that directory is gone.
    """
    if text.startswith("/"):
        return text
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise ValueError(
            "is relative to the directory of the start, which is gone; make it absolute"
        ) from None
    return f"{escape(str(here))}/{text}"


def _make_absolute(path: Path) -> Path:
    return Path(absolute(str(path)))


FilePath = Annotated[Path, BeforeValidator(_check_text), AfterValidator(_make_absolute)]
"""The path of a file or directory, absolute once it was read."""

SocketPath = Annotated[FilePath, AfterValidator(_check_socket)]
"""The path of a Unix socket."""


class Form:
    """The form of a text, as in ``Annotated[str, Form(r"^[a-z]{1,9}$", "1 to 9 of a-z")]``.

    The error says the words. It says nothing of what was given, which may be a secret.

    Args:
        pattern: The text must match it, as with `Field(pattern=...)`.
        words: The texts that match, so that a sentence can end with it: must be ….
    """

    __slots__ = ("_pattern", "_words")

    def __init__(self, pattern: str, words: str) -> None:
        self._pattern, self._words = pattern, words

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        matching = core_schema.custom_error_schema(
            core_schema.str_schema(pattern=self._pattern),
            custom_error_type="text_form",
            custom_error_message=f"must be {self._words}",
        )
        return core_schema.chain_schema([handler(source), matching])

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": self._pattern}


class Secret(BaseModel):
    """A secret in the configuration, in a variable of the environment, or (better) in a file.

    Its user reads it each time, so a new secret in the file needs no restart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: SecretStr | None = None
    file: FilePath | None = None
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_text_is_the_value(cls, given: object) -> object:
        return {"value": given} if isinstance(given, str | int | float) else given

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if sum(given is not None for given in (self.value, self.file, self.env)) != 1:
            raise ValueError("give the secret itself, {file: PATH} or {env: NAME}")
        if self.env is not None and self.env not in os.environ:
            raise ValueError(f"the variable {self.env} is not set")
        return self

    def read(self) -> str:
        """The secret now, without white space around it.

        Raises:
            OSError: The file cannot be read, or is no text.
        """
        if self.file is not None:
            return read_file(self.file)
        if self.env is not None:
            return read_variable(self.env, os.environ)
        assert self.value is not None
        return self.value.get_secret_value().strip()


def secrets_of(value: object, place: str = "") -> Iterator[tuple[str, Secret]]:
    """The secrets in a configuration, or a part of it at `place`, with the paths of their keys."""
    if isinstance(value, Secret):
        yield place, value
        return
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, BaseModel):
        parts = value
    elif isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for name, part in parts:
        if isinstance(part, BaseModel | dict | list | tuple):  # a `Secret` is a model, too
            yield from secrets_of(part, f"{place}.{name}" if place else str(name))


def read_file(path: Path) -> str:
    """The text in a file, without white space around it: editors end files with a newline.

    Raises:
        OSError: The file cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise PermissionError(f"{path} is no text in UTF-8") from None


def read_variable(name: str, environ: Mapping[str, str]) -> str:
    """The value of a variable, without white space around it.

    Raises:
        OSError: It is not set.
    """
    try:
        return environ[name].strip()
    except KeyError:
        raise FileNotFoundError(f"the variable {name} is not set") from None


_SIZE_KEY: Final = re.compile(r"(^|_)bytes(_|$)")
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")
_SIZES: Final[Mapping[str, int]] = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
}
_SECONDS: Final[Mapping[str, float]] = {
    "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400,
}  # fmt: skip


def _read(model: type[BaseModel], data: Any) -> Any:
    """Read a section: its quantities as numbers, its sections with the defaults they have in it.

    Raises:
        ValueError: A unit is not one of the key's.
    """
    if not isinstance(data, dict):
        return data
    found: dict[str, Any] = {}
    for key in model.model_fields.keys() & data.keys():
        value, units = data[key], _units_of(key)
        default = model.model_fields[key].default
        if isinstance(value, dict) and isinstance(default, BaseModel) and default.model_fields_set:
            found[key] = _completed(value, default)
        if isinstance(value, str) and units and (quantity := _QUANTITY.fullmatch(value)):
            number, unit = quantity.groups()
            if unit not in units:
                msg = f"{key}: {value!r} has no unit that is known: use one of {', '.join(units)}"
                raise ValueError(msg)
            amount = float(number) * units[unit]
            found[key] = int(amount) if amount == int(amount) else amount
    return {**data, **found} if found else data


def _completed(given: dict[Any, Any], default: BaseModel) -> dict[Any, Any]:
    """A section as given; the keys that are not given are those of its place's default.

    Pydantic alone would take them from the section's class, which other places share.
    """
    whole = dict(given)
    for name, field in type(default).model_fields.items():
        key, value = field.alias or name, getattr(default, name)
        if key not in whole:
            whole[key] = value
        elif isinstance(whole[key], dict) and isinstance(value, BaseModel):
            whole[key] = _completed(whole[key], value)
    return whole


def _units_of(key: str) -> Mapping[str, float]:
    """The units that a key's value may have, in those of its name; none of other keys."""
    if _SIZE_KEY.search(key):
        return _SIZES
    if key.endswith("_ms"):
        return {unit: seconds * 1000 for unit, seconds in _SECONDS.items()}
    if key.endswith("_s") and not key.endswith("_per_s"):
        return _SECONDS
    return {}


class Quantities(BaseModel):
    """A section whose sizes and durations may have units.

    A section in it that is given in part keeps, for its other keys, the default that the field has
    here: with `batch: Batch = Batch(max_records=10)` that is 10, whatever `Batch` says.

    Only the model that is read is built, with the sections in it, when it is read: a start with
    thirty sections takes a twentieth less CPU time.
    """

    model_config = ConfigDict(defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _read_keys(cls, data: Any) -> Any:
        return _read(cls, data)
