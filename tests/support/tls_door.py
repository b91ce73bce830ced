"""A TCP door that ends TLS in front of a server that knows none."""

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.certificates import Certificate


class TlsDoor:
    """Listens on a port of its own, and carries what it decrypts to another.

    Args:
        target_port: Of the server.
        certificate: To show.
        trusted: Who must have signed the certificate that clients show; none: they need none.
    """

    def __init__(
        self, target_port: int, certificate: Certificate, trusted: Path | None = None
    ) -> None:
        self._target_port = target_port
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate.cert, certificate.key)
        if trusted is not None:
            self._tls.load_verify_locations(trusted)
            self._tls.verify_mode = ssl.CERT_REQUIRED
        self._ready = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, about: None)  # clients that do not trust us
        server = await asyncio.start_server(self._carry_both, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far = await asyncio.open_connection("127.0.0.1", self._target_port)
        await asyncio.gather(_carry(reader, far[1]), _carry(far[0], writer))


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()
