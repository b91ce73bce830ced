"""`make appliance-soak`: the whole appliance for half an hour, with a fault every minute.

    make appliance-soak MINUTES=30
    make appliance-soak MINUTES=2 ARGS="--every 20 --nodes 1 --keep"

`penstock up` with three logd, NATS, collector, router and console; a publisher at a steady rate on
the collector's socket. In turn each process is killed (-9), and the next time round stopped for
8 s. In the end: each acknowledged record is in the Parquet files, once; no process's memory grows
(slope of what it has resident after its warm-up); each error in a log came with a fault.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from penstock.base.clock import SystemClock
from tests.appliance_soak.course import Appliance, Course, NotHealthyError, complaints, landed
from tests.appliance_soak.figures import growth


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, say how it went; 0 if all holds."""
    options = _parse(arguments)
    for wanted in (signal.SIGINT, signal.SIGTERM):
        signal.signal(wanted, _interrupt)
    root = Path(tempfile.mkdtemp(dir=options.dir, prefix="penstock-soak-")).absolute()
    clock = SystemClock()
    begun_ns = clock.monotonic_ns()

    def tell(words: str) -> None:
        click.echo(f"{(clock.monotonic_ns() - begun_ns) / 6e10:6.1f} min  {words}")

    appliance = Appliance(root / "state", options.nodes)
    course = Course(appliance, options.rate, options.every, tell)
    trouble = ""
    try:
        with appliance.running():
            tell(f"runs in {root}: {', '.join(appliance.parts)}")
            course.run(options.minutes)
        tell("stopped")
    except NotHealthyError as error:
        trouble = str(error)
    report = _judge(appliance, course, trouble)
    _show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if report["holds"] and not options.keep:
        shutil.rmtree(root)
    else:
        click.echo(f"what it left: {root}")
    return 0 if report["holds"] else 1


def _judge(appliance: Appliance, course: Course, trouble: str) -> dict[str, Any]:
    seen = course.seen
    count = landed(appliance.layout, course.sent)
    found = complaints(appliance.layout, seen.faults)
    grown = [growth(part, pid, samples) for (part, pid), samples in sorted(seen.samples.items())]
    flat = all(one.is_flat for one in grown)
    return {
        "holds": not trouble and count.holds and flat and not found.unexplained,
        "trouble": trouble,
        "records": asdict(count),
        "faults": len(seen.faults),
        "recovery_s_max": max(seen.recoveries, default=0.0),
        "memory": [asdict(one) | {"flat": one.is_flat} for one in grown],
        "errors_explained": dict(found.explained),
        "errors_unexplained": found.unexplained[:20],
    }


def _show(report: dict[str, Any]) -> None:
    records = report["records"]
    click.echo(
        f"{records['acked']:,} records acknowledged, {records['missing']:,} missing,"
        f" {records['repeated']:,} repeated; {report['faults']} faults, all well after"
        f" {report['recovery_s_max']:.0f} s at most"
    )
    for one in report["memory"]:
        if one["mib_per_hour"] is not None:
            mark = "flat" if one["flat"] else "GROWS"
            click.echo(
                f"{one['part']:>13} {one['pid']}: {one['last_mib']:.0f} MiB after"
                f" {one['lived_s'] / 60:.0f} min, {one['mib_per_hour']:+.1f} MiB/h, {mark}"
            )
            if not one["flat"]:
                click.echo(f"{'':>13} minute by minute: {' '.join(map(str, one['curve_mib']))} MiB")
    for name, times in sorted(report["errors_explained"].items()):
        click.echo(f"explained by a fault, {times} times: {name}")
    for line in report["errors_unexplained"]:
        click.echo(f"NOT EXPLAINED: {line}")
    if report["trouble"]:
        click.echo(f"TROUBLE: {report['trouble']}")
    click.echo("all holds" if report["holds"] else "NOT ALL HOLDS")


def _interrupt(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make appliance-soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds from fault to fault")
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    parser.add_argument("--nodes", type=int, default=3, help="logd")
    parser.add_argument("--dir", type=Path, help="where it makes its directory")
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--keep", action="store_true", help="leave everything")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
