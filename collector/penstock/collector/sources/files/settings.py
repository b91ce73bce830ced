"""Settings of the source `file`."""

from glob import escape
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from penstock.collector.limits import (
    DECOMPRESSED_BYTES_MAX,
    FILE_LINE_BYTES_MAX,
    LINE_BYTES_MAX,
)
from penstock.collector.regex import compile_pattern
from penstock.collector.sources.containers.settings import DockerSection, KubernetesSection
from penstock.collector.sources.settings import LinesSettings, Section
from penstock.service import NoNul, absolute
from penstock.service.config_types import check_unexpanded


def _absolute_pattern(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    check_unexpanded(text)
    return absolute(text, escape)


Pattern = Annotated[NoNul, AfterValidator(_absolute_pattern)]
"""Pattern of absolute paths; a relative one is resolved as it is read, like a `FilePath`."""


class MultilineSection(Section):
    """Rules that join lines to one event; patterns are RE2's, searched in a line's first KiB."""

    start: str | None = Field(default=None, description="a line with it begins an event")
    continuation: str | None = Field(default=None, description="a line with it goes on with one")
    end: str | None = Field(
        default=None, description="a line with it is the last of its event; of the whole line"
    )
    extends: list[Literal["dotnet", "go", "java", "python", "ruby"]] = Field(
        default=[], description="stack traces of these languages go on with an event"
    )

    @field_validator("extends", mode="before")
    @classmethod
    def _may_be_one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_what_fits(self) -> "MultilineSection":
        if self.start is not None and (self.continuation is not None or self.extends):
            msg = "beside `start` every line goes on with an event: leave out the other patterns"
            raise ValueError(msg)
        patterns = [one for one in (self.start, self.continuation, self.end) if one is not None]
        if not patterns and not self.extends:
            msg = "set `start`, `continuation`, `end` or `extends`"
            raise ValueError(msg)
        for pattern in patterns:
            try:
                compile_pattern(pattern.encode())
            except ValueError as error:
                msg = f"{pattern!r} {error}"
                raise ValueError(msg) from None
        return self


class FileSettings(LinesSettings):
    """Lines of files, followed through rotation; the files are their own spool."""

    type: Literal["file"]
    include: list[Pattern] = Field(min_length=1)
    exclude: list[Annotated[NoNul, AfterValidator(check_unexpanded)]] = Field(default=[])
    service: str = Field(min_length=1)
    start_at: Literal["beginning", "end"] = Field(
        default="beginning",
        description="of files that are there when the source runs for the first time",
    )
    ignore_older_s: float | None = Field(
        default=None,
        gt=0,
        description="a file not written to for so long is not begun; null: every file is",
    )
    remove_after_s: float | None = Field(
        default=None,
        ge=0,
        description="a file in the log to its end and not written to for so long is removed",
    )
    format: Literal["plain", "docker", "cri"] = "plain"
    multiline: MultilineSection | None = None
    join_timeout_s: float = Field(
        default=5.0, ge=0, le=3600, description="how long an event waits for more of its lines"
    )
    flush_partial_s: float | None = Field(
        default=5.0,
        ge=0,
        le=3600,
        description="how long a last line waits for its newline; null: until it comes",
    )
    max_line_bytes: int = Field(
        default=LINE_BYTES_MAX,
        ge=64,
        le=FILE_LINE_BYTES_MAX,
        description="longer lines are cut and marked; one above 32 KiB becomes several records",
    )
    encoding: Literal[
        "utf-8", "utf-16", "utf-16le", "utf-16be", "latin-1", "windows-1252", "iso-8859-15"
    ] = Field(default="utf-8", description="of `plain` files; `utf-16` goes by the byte order mark")
    poll_ms: int = Field(
        default=250, ge=10, le=60_000, description="between looks, where inotify says nothing"
    )
    inotify: bool = Field(
        default=True, description="false: files are looked at every `poll_ms` on local disks, too"
    )
    rotate_wait_s: float = Field(default=30.0, ge=0)
    kubernetes: KubernetesSection | None = None
    docker: DockerSection | None = None
    max_decompressed_bytes: int = Field(
        default=DECOMPRESSED_BYTES_MAX,
        ge=1,
        description="what the rest of a file is not read in a compressed one beyond",
    )

    @model_validator(mode="after")
    def _has_containers(self) -> "FileSettings":
        if self.service == "from_container" and not (self.kubernetes or self.docker):
            msg = (
                "`service: from_container` needs the section `kubernetes` ({} is enough in a pod)"
                " or `docker`"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _encoding_is_of_plain_lines(self) -> "FileSettings":
        if self.encoding != "utf-8" and self.format != "plain":
            msg = f"`encoding` is for `format: plain`; runtimes write {self.format} in UTF-8"
            raise ValueError(msg)
        return self
