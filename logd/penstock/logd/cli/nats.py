"""How `penstock logd publish` reaches NATS: its servers, TLS, and as whom."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.logd.cli.server import clients, refusal
from penstock.logd.cli.text import safe
from penstock.logd.client import Access
from penstock.logd.errors import NoAnswerError, RefusedError, UnavailableError
from penstock.logd.publisher import BlockingPublisher, PublishOptions
from penstock.service import UnavailableError as ServiceUnavailableError

Function = TypeVar("Function", bound=Callable[..., Any])

_GIVEN: Final = "penstock.logd.nats"


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep an option for `publishing`."""
    assert parameter.name is not None
    context.meta.setdefault(_GIVEN, {})[parameter.name] = value


def _file_option(name: str, parameter: str, variable: str, text: str) -> Any:
    return click.option(
        name,
        parameter,
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=f"PENSTOCK_LOGD_NATS_{variable}",
        show_envvar=True,
        metavar="FILE",
        expose_value=False,
        callback=_note,
        help=text,
    )


_LOGIN: Final = (
    click.option(
        "--nats-tls",
        "tls",
        is_flag=True,
        envvar="PENSTOCK_LOGD_NATS_TLS",
        show_envvar=True,
        expose_value=False,
        callback=_note,
        help="Nothing goes to NATS without TLS; so it is with tls:// and the next two.",
    ),
    _file_option(
        "--nats-ca", "ca_file", "CA", "Authority of the NATS server's certificate, in PEM."
    ),
    _file_option("--nats-cert", "cert_file", "CERT", "Certificate to be known by at NATS, in PEM."),
    _file_option("--nats-key", "key_file", "KEY", "Its key, if it is not in the same file."),
    _file_option("--nats-creds", "creds", "CREDS", "A NATS user's JWT and seed (.creds)."),
)


def nats_option(function: Function) -> Function:
    """Add `--nats URL`, and how to be let in there: `publishing` finds that by itself."""
    for option in reversed(_LOGIN):
        function = option(function)
    return click.option(
        "--nats",
        envvar="PENSTOCK_LOGD_NATS",
        default="nats://127.0.0.1:4222",
        show_default=True,
        show_envvar=True,
        metavar="URL[,...]",
        help="The NATS server that logd listens at, or several.",
    )(function)


def login() -> dict[str, Any]:
    """What NATS is shown, as the command's options and the environment say. Reads files.

    Raises:
        click.UsageError: They contradict themselves.
        RefusedError: `BAD_TLS_FILE`.
    """
    given = dict(click.get_current_context().meta.get(_GIVEN, {}))
    creds = given.pop("creds", None)
    if given.get("key_file") is not None and given.get("cert_file") is None:
        raise click.UsageError("--nats-key needs --nats-cert")
    found: dict[str, Any] = {}
    context = Access(**given).context()
    if context is not None:
        found["tls"] = context
    if creds is not None:
        found["user_credentials"] = str(creds)
    return found


@contextmanager
def publishing(nats: str, options: PublishOptions) -> Iterator[BlockingPublisher]:
    """A publisher; its errors become messages with a fix, and exit codes."""
    try:
        make = clients().publisher or BlockingPublisher
        with make(nats, options, **login()) as publisher:
            yield publisher
    except RefusedError as error:
        raise refusal(error) from None
    except NoAnswerError as error:
        fix = "look before you publish again: penstock logd tail STREAM; with --server naming logd"
        raise ServiceUnavailableError(
            safe(str(error)), fix=f"{fix}, streams that do not answer are published to in batches"
        ) from None
    except UnavailableError as error:
        fix = "see which streams store the subject, penstock logd match SUBJECT, and that --nats"
        raise ServiceUnavailableError(
            safe(str(error)), fix=f"{fix} names the NATS server of logd"
        ) from None
