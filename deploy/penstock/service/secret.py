"""One way to give a secret in every part's configuration: `text`, `{file: PATH}`, `{env: NAME}`.

Other values may be given so, too; `penstock.service.config` reads those, once, when it loads.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator

from penstock.service.paths import FilePath


class Secret(BaseModel):
    """A secret in the configuration, in a variable of the environment, or (better) in a file.

    Whoever uses it reads it each time, so that a new secret in the file needs no restart.
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
