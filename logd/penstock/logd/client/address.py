"""Where a logd listens."""


def split_address(server: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 host stands in brackets.

    Raises:
        ValueError: It is neither.
    """
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        msg = f"server {server!r} is not HOST:PORT"
        raise ValueError(msg)
    return host.strip("[]"), int(port)
