"""Where a logd listens."""


def split_address(server: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 host stands in brackets.

    Raises:
        ValueError: It is not.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        msg = f"server {server!r} is not HOST:PORT"
        raise ValueError(msg)
    try:
        host.encode("idna")
    except UnicodeError:
        msg = f"server {server[:80]!r}: its host cannot be a name"
        raise ValueError(msg) from None
    return host.strip("[]"), int(port)
