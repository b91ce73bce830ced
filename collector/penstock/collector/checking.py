"""What is wrong with a configuration that only its use would show: files of TLS, tests' sources."""

from collections.abc import Iterator

from penstock.collector.config import CollectorConfig
from penstock.collector.transforms.graph import Graph
from penstock.logd.security.tls import CertificateFiles, ClientCertificates, TlsFileError
from penstock.service import ConfigError


def check_use(config: CollectorConfig, graph: Graph, where: str) -> None:
    """Look at what a configuration names.

    Args:
        config: Checked by itself.
        graph: Made of it.
        where: Its files, for messages.

    Raises:
        ConfigError: With file, key path, reason and fix for every mistake found.
    """
    found = [*_of_files(config), *_of_tests(config, graph)]
    if found:
        raise ConfigError(
            "\n".join(f"{where}: {key}: {reason}" for key, reason, _ in found),
            fix="; ".join(dict.fromkeys(f"{key}: {fix}" for key, _, fix in found)),
        )


Mistake = tuple[str, str, str]
"""The key, the reason, the fix."""


def _of_files(config: CollectorConfig) -> Iterator[Mistake]:
    for index, source in enumerate(config.sources):
        if (section := getattr(source, "tls", None)) is not None:
            yield from _files(section, f"sources.{index}.tls", listens=True)
        elif getattr(source, "ca_file", None) is not None:
            yield from _files(source, f"sources.{index}")
    yield from _files(config.nats, "nats")
    if config.admin_access is not None and config.admin_access.cert_file is not None:
        yield from _files(config.admin_access, "admin_access", listens=True)
    if config.tracing is not None:
        yield from _files(config.tracing, "tracing")


def _files(section: object, place: str, *, listens: bool = False) -> Iterator[Mistake]:
    """Of a section that has some of the three."""
    names = ("ca_file", "cert_file", "key_file")
    files = CertificateFiles(**{name: getattr(section, name, None) for name in names})
    asks = ClientCertificates.NONE if files.ca_file is None else ClientCertificates.REQUIRED
    try:
        if listens:
            files.server(asks)
        elif files.paths():
            files.client()
    except TlsFileError as error:
        yield f"{place}.{error.key}", str(error), error.fix


def _of_tests(config: CollectorConfig, graph: Graph) -> Iterator[Mistake]:
    known = [source.name or source.type for source in config.sources] + graph.creators()
    for index, case in enumerate(config.tests):
        if case.source not in known:
            reason = f"there is no source {case.source!r}, only {', '.join(known)}"
            yield f"tests.{index}.source", reason, "name one of those"
