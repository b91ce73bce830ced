"""Emit logs: one line of set-up, then structlog as usual.

Without a socket the records go to standard output, one JSON object a line. Printed, shortened:

    {"schema":"log/1.0","kind":"log",…,"severity_text":"INFO","body":"order placed",…}
    {"schema":"log/1.0","kind":"log",…,"severity_text":"ERROR","body":"order failed",…}
"""

from penstock import specs

specs.setup("checkout", version="1.0.0", environment="example")
log = specs.log("shop")

with specs.bind(user_id="u-17", request_id="r-1"):
    log.info("order placed", order_id="o-1", total=24.5)
    try:
        int("three")
    except ValueError:
        log.exception("order failed", order_id="o-2")
