"""What an admin endpoint answers."""

from urllib.error import HTTPError
from urllib.request import Request, urlopen


def status_code(address: str, host: str) -> int:
    """The HTTP code of `/status` for a caller that names the endpoint `host`."""
    request = Request(f"http://{address}/status", headers={"Host": host})
    try:
        with urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
