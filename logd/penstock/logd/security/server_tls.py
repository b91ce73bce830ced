"""What a listener's certificate files come to, read and checked together."""

import ssl
from dataclasses import dataclass

from cryptography import x509

from penstock.logd.security.certificate import not_after_ns
from penstock.logd.security.tls import CertificateFiles, ClientCertificates


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServerTls:
    """One reading of the files.

    Attributes:
        context: For connections on the event loop and in threads.
        healthy: The same, but nobody has to show a certificate: for `/healthz`.
        chain, key, authorities: PEM, for gRPC.
        not_after_ns: Unix time at which the certificate ends.
    """

    context: ssl.SSLContext
    healthy: ssl.SSLContext
    chain: bytes
    key: bytes
    authorities: bytes | None
    not_after_ns: int


def load_server_tls(files: CertificateFiles, clients: ClientCertificates) -> ServerTls:
    """Read the files of a listener.

    Raises:
        TlsFileError: One is not what it should be.
        OSError: One has gone meanwhile.
    """
    assert files.cert_file is not None
    context, probed = files.server(clients), clients
    if clients is ClientCertificates.REQUIRED:
        probed = ClientCertificates.OPTIONAL
    chain = files.cert_file.read_bytes()
    return ServerTls(
        context=context,
        healthy=files.server(probed),
        chain=chain,
        key=(files.key_file or files.cert_file).read_bytes(),
        authorities=None if files.ca_file is None else files.ca_file.read_bytes(),
        not_after_ns=not_after_ns(x509.load_pem_x509_certificate(chain)),
    )
