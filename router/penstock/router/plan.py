"""What a job amounts to, as text for people: streams, routes, sinks, columns. Needs no JVM."""

from penstock.router.config import JobConfig, Route
from penstock.router.views import view


def picture(job: JobConfig) -> str:
    """Streams to routes to sinks, and the columns that a `where` may use."""
    lines = [f"job {job.job}", "", "streams", f"  {', '.join(job.streams)}  (from {job.logd})", ""]
    lines.append("routes" if job.routing == "fan_out" else "routes, the first that matches")
    width = max(len(route.name) for route in job.routes)
    lines += [_route_line(route, width) for route in job.routes]
    others = ", ".join(job.unmatched.sinks) or "left out, counted"
    if all(route.where is not None for route in job.routes):
        lines.append(f"  {'(else)':<{width}}  what no route wants -> {others}")
    lines += ["", "sinks"]
    lines += [f"  {name:<{width}}  {sink.about()}" for name, sink in job.sinks.items()]
    lines += ["", "columns"]
    columns = view("records").columns
    lines += [f"  {column.name:<28} {column.spark.simpleString()}" for column in columns]
    return "\n".join(lines)


def _route_line(route: Route, width: int) -> str:
    condition = "everything" if route.where is None else f"where {route.where}"
    steps = "".join(f", {step.verb}" for step in route.transforms)
    return f"  {route.name:<{width}}  {condition}{steps} -> {', '.join(route.sinks)}"
