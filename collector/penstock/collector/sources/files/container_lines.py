r"""Lines of container logs: what Docker's json-file driver and CRI runtimes write around each.

    docker   {"log":"text\n","stream":"stdout","time":"2026-01-02T03:04:05.123456789Z"}
             and "attrs":{"tag":"web"}, where its options `labels`, `env` or `tag` are set
    cri      2026-01-02T03:04:05.123456789Z stdout F text

Both cut long lines: a fragment of Docker's lacks the newline at its end, one of CRI's has the tag P
instead of F. The fragments of one line follow one another within their stream only.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.collector.decode.timestamps import iso_time_ns

_CRI: Final = re.compile(rb"([0-9][0-9T:.+Z-]{18,35}) (stdout|stderr) ([^ ]+) ?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LineFragment:
    """A line, or a part of one.

    Attributes:
        stream: ``stdout``, ``stderr``, or empty.
        time_ns: Time when it was written; None when the line has none.
        is_partial: The line goes on in the next fragment of its stream.
        attributes: Attributes that the runtime is configured to add: Docker's labels, variables and
            tag.
    """

    text: bytes
    stream: str = ""
    time_ns: int | None = None
    is_partial: bool = False
    attributes: Mapping[str, str] | None = None


ReadFragment = Callable[[bytes], LineFragment | None]
"""Read a line of a file; None when it is not of the format."""


def read_plain(line: bytes) -> LineFragment:
    """A line that is nothing else."""
    return LineFragment(line)


def read_docker(line: bytes) -> LineFragment | None:
    """A line of the json-file driver; an empty `log` is left out by it."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or "time" not in fields:
        return None
    text, stream, time = fields.get("log", "\n"), fields.get("stream", ""), fields["time"]
    if not (isinstance(text, str) and isinstance(stream, str) and isinstance(time, str)):
        return None
    raw = text.encode()
    return LineFragment(
        raw.removesuffix(b"\n").removesuffix(b"\r"),
        stream,
        iso_time_ns(time),
        is_partial=not raw.endswith(b"\n"),
        attributes=_attributes(fields.get("attrs")),
    )


def _attributes(attrs: object) -> dict[str, str] | None:
    """Docker writes texts alone; anything else is kept as the text that it is written as."""
    if not isinstance(attrs, dict) or not attrs:
        return None
    return {
        f"docker.attrs.{name}": value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in attrs.items()
    }


def read_cri(line: bytes) -> LineFragment | None:
    """A line of a CRI runtime."""
    head = _CRI.match(line)
    if head is None:
        return None
    tag = head[3].partition(b":")[0]
    if tag not in (b"P", b"F"):
        return None
    return LineFragment(
        line[head.end() :],
        head[2].decode(),
        iso_time_ns(head[1].decode()),
        is_partial=tag == b"P",
    )


READERS: Final[Mapping[str, ReadFragment]] = {
    "plain": read_plain,
    "docker": read_docker,
    "cri": read_cri,
}
"""The reader of each format, by the format's name."""
