#!/usr/local/bin/python3 -IS
"""Health check of the process in this container: exit 0 when `/healthz` answers 200.

Standard library alone and few imports, since it runs every few seconds: urllib costs more than the
answer. The URL is $PENSTOCK_HEALTH_URL; with https the certificate is not checked, because only
the process itself listens on this container's loopback.
"""

import os
import socket
import sys

TIMEOUT_S = 4.0


def main() -> int:
    """Ask once."""
    scheme, _, rest = os.environ["PENSTOCK_HEALTH_URL"].partition("://")
    address, _, path = rest.partition("/")
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        if scheme == "https":
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    except OSError as error:
        print(f"{scheme}://{address}: {error}")  # noqa: T201 - docker inspect shows it
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    print(body.decode(errors="replace")[:400])  # noqa: T201 - docker inspect shows it
    return 0 if head.split(b" ", 2)[1:2] == [b"200"] else 1


if __name__ == "__main__":
    sys.exit(main())
