"""A small shop that places orders, instrumented with everything `penstock.specs` has.

    python examples/checkout_app.py --socket /run/penstock/collector.sock --seconds 10

Logs by structlog and by the standard library, nested OpenTelemetry spans, a counter, a histogram
and a gauge, an event of its own (`OrderPlaced`), audit records, and now and then an order that
fails. When its time is over, or on SIGTERM, it finishes its order, flushes, and prints one line of
JSON: its instance id, what it emitted by kind, what was acked, what was dropped.
"""

import argparse
import json
import logging
import random
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Annotated

from opentelemetry import metrics, trace
from pydantic import Field

from penstock import specs
from penstock.base import clock
from penstock.specs.otel import exporter

PRODUCTS = {"kettle": 39.9, "teapot": 24.5, "mug": 7.0, "tea": 12.0, "tray": 18.0}
COUNTRIES = ("SE", "DE", "FR", "NL")


class OrderPlaced(specs.Event, spec="shop.order_placed/1.0"):
    """An order was paid for."""

    order_id: str
    total: Annotated[float, Field(ge=0)]
    items: Annotated[int, Field(ge=1)]
    country: str


class PaymentDeclinedError(Exception):
    """The bank said no."""


@dataclass(frozen=True)
class Order:
    """What a customer wants."""

    id: str
    customer: str
    country: str
    products: list[str]

    @property
    def total(self) -> float:
        """The price of all products."""
        return round(sum(PRODUCTS[name] for name in self.products), 2)


class Shop:
    """Takes orders, one at a time."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._log = specs.log("shop.checkout")
        self._warehouse_log = logging.getLogger("shop.warehouse")
        self._tracer = trace.get_tracer("shop")
        meter = metrics.get_meter("shop")
        self._orders = meter.create_counter("shop.orders", "{order}", "Orders by outcome")
        self._value = meter.create_histogram("shop.order.value", "EUR", "Value of paid orders")
        self._stock = meter.create_gauge("shop.stock", "{item}", "Items on the shelf")
        self._shelf = dict.fromkeys(PRODUCTS, 200)
        self.placed = 0

    def serve_next(self) -> None:
        """A customer comes in."""
        order = self._make_order()
        with (
            specs.bind(user_id=order.customer, request_id=order.id),
            self._tracer.start_as_current_span("checkout", kind=trace.SpanKind.SERVER) as span,
        ):
            span.set_attribute("shop.order_id", order.id)
            self._log.info("checkout started", items=len(order.products))
            try:
                self._reserve(order)
                self._charge(order)
            except PaymentDeclinedError as error:
                self._decline(order, error)
            else:
                self._complete(order)

    def _make_order(self) -> Order:
        self.placed += 1
        dice = self._dice
        return Order(
            id=f"order-{self.placed:08d}",
            customer=f"customer-{dice.randrange(500)}",
            country=dice.choice(COUNTRIES),
            products=dice.choices(list(PRODUCTS), k=dice.randint(1, 4)),
        )

    def _reserve(self, order: Order) -> None:
        with self._tracer.start_as_current_span("reserve stock") as span:
            for product in order.products:
                self._shelf[product] -= 1
                if self._shelf[product] <= 0:
                    self._warehouse_log.warning("refilling %s", product, extra={"items": 200})
                    self._refill(product)
                self._stock.set(self._shelf[product], {"shop.product": product})
            span.set_attribute("shop.items", len(order.products))

    def _refill(self, product: str) -> None:
        self._shelf[product] += 200
        specs.Audit(
            event_name="shop.stock_refilled",
            actor=specs.Actor(type="service", id="checkout"),
            action="update",
            target=specs.Target(type="stock", id=product),
            outcome="success",
            changed_fields=["items"],
        ).emit()

    def _charge(self, order: Order) -> None:
        with self._tracer.start_as_current_span("charge card", kind=trace.SpanKind.CLIENT):
            if self._dice.random() < 0.03:
                raise PaymentDeclinedError("the bank declined the payment")
            self._log.debug("card charged", total=order.total)

    def _decline(self, order: Order, error: PaymentDeclinedError) -> None:
        self._log.error("order failed", order_id=order.id, exc_info=error)
        self._orders.add(1, {"shop.outcome": "declined"})
        trace.get_current_span().set_status(trace.StatusCode.ERROR, "payment declined")
        for product in order.products:
            self._shelf[product] += 1

    def _complete(self, order: Order) -> None:
        self._orders.add(1, {"shop.outcome": "paid"})
        self._value.record(order.total, {"shop.country": order.country})
        OrderPlaced(
            order_id=order.id,
            total=order.total,
            items=len(order.products),
            country=order.country,
            subject=order.customer,
        ).emit()
        self._log.info("order placed", order_id=order.id, total=order.total)


def main() -> int:
    """Run the shop; 0 when every record was acked, 1 when some were dropped or not answered."""
    options = _options()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    emitter = specs.setup(
        "checkout",
        version="1.4.2",
        environment="demo",
        socket=options.socket,
        console=False,  # the last line on standard output is the report
        opentelemetry=False,  # below, to choose the interval
    )
    exporter.install(metric_interval_s=2.0)
    shop = Shop(random.Random(options.seed))
    until_ns = clock.monotonic_ns() + int(options.seconds * 1e9)
    while not stop.is_set() and (not options.seconds or clock.monotonic_ns() < until_ns):
        shop.serve_next()
        stop.wait(1 / options.rate)
    specs.log("shop").info("shop closed", orders=shop.placed)
    exporter.shutdown()
    flushed = emitter.flush(options.flush_seconds)
    instance = emitter.resource["service.instance.id"]
    report = {"instance": instance, "flushed": flushed, "orders": shop.placed}
    report |= emitter.counters().as_dict()
    print(json.dumps(report), flush=True)
    return 0 if flushed and not report["dropped"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small shop, for Penstock's demo.")
    parser.add_argument("--socket", help="the collector's Unix socket; else lines on stdout")
    parser.add_argument("--seconds", type=float, default=10.0, help="0 runs until SIGTERM")
    parser.add_argument("--rate", type=float, default=20.0, help="orders a second")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same orders")
    parser.add_argument("--flush-seconds", type=float, default=10.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
