"""`make test-extended`: the tests of sinks once more, against products that are too large for CI.

What the fakes of products are held to is held against the products themselves, and the sinks are
put through the same faults in front of them. OpenSearch and Kafka need Maven, and a Java of 21 and
17 or newer; the others need go, and minutes to build them once.

Exit codes: 0 all passed, 1 a test failed, 69 no product can be had here, and why.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.extended.jaeger import JAEGER
from tests.extended.kafka import KAFKA
from tests.extended.opensearch import OPENSEARCH
from tests.extended.otel_collector import OTEL_COLLECTOR
from tests.extended.product import Product, UnavailableError
from tests.extended.prometheus import PROMETHEUS

PRODUCTS: Final = {
    "jaeger": JAEGER, "kafka": KAFKA, "opensearch": OPENSEARCH, "otel-collector": OTEL_COLLECTOR,
    "prometheus": PROMETHEUS,
}  # fmt: skip
DIRECTORY: Final = Path(".work") / "products"
FAILED: Final = 1
UNAVAILABLE: Final = 69


def main(
    arguments: Sequence[str],
    *,
    products: Mapping[str, Product] = PRODUCTS,
    directory: Path = DIRECTORY,
) -> int:
    """Run them; further arguments go to pytest."""

    def named(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(products)):
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {','.join(products)}")
        return names

    parser = argparse.ArgumentParser(
        prog="make test-extended", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--only", type=named, default=list(products), metavar="NAMES",
        help=f"of {','.join(products)}; all of them without it",
    )  # fmt: skip
    chosen, further = parser.parse_known_args(arguments)
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    outcomes = {name: _tested(name, products[name], directory, further) for name in chosen.only}
    sys.stdout.write("".join(f"{name:16}{said}\n" for name, (_, said) in outcomes.items()))
    codes = {code for code, _ in outcomes.values()}
    return FAILED if FAILED in codes else min(codes)


def _tested(
    name: str, product: Product, directory: Path, further: Sequence[str]
) -> tuple[int, str]:
    """The exit code for one product, and what is to be said of it."""
    sys.stdout.write(f"── {name}: {product.title}\n")
    sys.stdout.flush()
    begun = time.monotonic()  # noqa: TID251 - how long a person waited
    try:
        with product.running(directory) as environment:
            code, counted = _pytest(product, directory / f"{name}.xml", environment, further)
    except UnavailableError as error:
        return UNAVAILABLE, f"{product.title}: cannot be had here: {error}"
    took_s = time.monotonic() - begun  # noqa: TID251 - how long a person waited
    return code, f"{product.title}: {counted} in {took_s:.0f} s"


def _pytest(
    product: Product, report: Path, environment: Mapping[str, str], further: Sequence[str]
) -> tuple[int, str]:
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *product.tests, "-k", product.about]
    code = subprocess.call(
        [*command, f"--junitxml={report}", *further], env={**os.environ, **environment}
    )
    return (FAILED if code else 0), _counted(report)


def _counted(report: Path) -> str:
    """What pytest reports, in words."""
    if not report.exists():
        return "no test ran"
    suites = ET.parse(report).getroot().iter("testsuite")
    counts = [{key: int(it.get(key, 0)) for key in _COUNTED} for it in suites]
    ran, failures, errors, skipped = (sum(it[key] for it in counts) for key in _COUNTED)
    failed = failures + errors
    return f"{ran - failed - skipped} passed, {failed} failed, {skipped} skipped"


_COUNTED: Final = ("tests", "failures", "errors", "skipped")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
