"""One document of all that is known of a pipeline: what the console's page shows.

Parts describe themselves (`/status`, see `penstock.service.admin`); logd says what streams there
are. What parts say is taken as what may be wrong: a figure that is none counts as 0. Rates are
per second, None while nobody knows them; times are milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.deploy.account.figures import CollectorFigures, counts, number
from penstock.deploy.account.rows import collector_row
from penstock.deploy.console.rates import Rates

Document = dict[str, Any]

COMPONENTS: Final = ("collector", "nats", "logd", "router")
"""Components in the order in which a record meets them."""

_WORST: Final = ("unreachable", "failed", "starting", "draining", "degraded", "ready")
_FIGURES: Final = ("received", "sent", "errors")
_COUNTING: Final = {"collector": "source/", "logd": "stream/", "router": "sink/", "nats": ""}
"""The stages of a component in which each record counts once."""

REASONS_MAX: Final = 20
"""Stages of one part that are shown; the others are counted."""


@dataclass(frozen=True, slots=True)
class PartSnapshot:
    """The state of a part.

    Attributes:
        status: Its last answer; None: it never gave one.
        problem: Why its last question was not answered; empty: it was.
        age_ms: Since its last answer; None: there was none.
        asked_ns: Monotonic time at which its last answer was asked for.
    """

    name: str
    status: Mapping[str, Any] | None
    problem: str = ""
    age_ms: int | None = None
    asked_ns: int = 0

    @property
    def component(self) -> str:
        """The component; for a part that never answered, a guess from its name."""
        if self.status is not None:
            return str(self.status.get("component", ""))
        return next((kind for kind in COMPONENTS if self.name.startswith(kind)), "")

    @property
    def health(self) -> str:
        """Health by the part's own report, or `unreachable`."""
        if self.problem or self.status is None:
            return "unreachable"
        said = str(self.status.get("health", ""))
        return said if said in _WORST else "degraded"

    @property
    def reasons(self) -> list[str]:
        """Why it is unhealthy."""
        said = self.status.get("reasons", ()) if self.status is not None else ()
        found = [str(reason) for reason in said] if isinstance(said, list | tuple) else []
        return ([self.problem] if self.problem else []) + found

    def stages(self) -> list[Mapping[str, Any]]:
        """Return the part's stages, as far as they are well formed."""
        said = self.status.get("stages") if self.status is not None else None
        known = said if isinstance(said, list) else []
        return [stage for stage in known if isinstance(stage, Mapping) and "name" in stage]

    def info(self, key: str) -> Mapping[str, Any]:
        """One entry of its `info`; empty when it has none."""
        info = self.status.get("info") if self.status is not None else None
        found = info.get(key) if isinstance(info, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def note_rates(seen: PartSnapshot, rates: Rates, at_ns: int) -> None:
    """Take an answer's counters."""
    for stage in seen.stages():
        for figure in _FIGURES:
            rates.take((seen.name, str(stage["name"]), figure), number(stage.get(figure)), at_ns)


def describe_parts(parts: Sequence[PartSnapshot], rates: Rates, now_ns: int) -> list[Document]:
    """A card for each part."""
    return [
        {
            "name": seen.name,
            "component": seen.component,
            "version": str((seen.status or {}).get("version", "")),
            "health": seen.health,
            "reasons": seen.reasons[:REASONS_MAX],
            "reasons_more": max(0, len(seen.reasons) - REASONS_MAX),
            "age_ms": seen.age_ms,
            **_figures([seen], rates, now_ns),
        }
        for seen in parts
    ]


def describe_pipeline(parts: Sequence[PartSnapshot], rates: Rates, now_ns: int) -> Document:
    """The picture: sources, components in the order of the data path, sinks."""
    nodes = []
    for component in COMPONENTS:
        own = [seen for seen in parts if seen.component == component]
        if own:
            nodes.append(
                {
                    "id": component,
                    "parts": len(own),
                    "away": sum(seen.health == "unreachable" for seen in own),
                    "health": min((seen.health for seen in own), key=_WORST.index),
                    **_figures(own, rates, now_ns),
                }
            )
    return {
        "nodes": nodes,
        "sources": stages_of(parts, "collector", "source/", rates, now_ns),
        "sinks": stages_of(parts, "router", "sink/", rates, now_ns),
    }


def _figures(parts: Sequence[PartSnapshot], rates: Rates, now_ns: int) -> Document:
    """Return throughput, backlog and errors of parts of one kind.

    Each sink of a router gets every record, so what comes in is what comes to the busiest one.
    """
    received: list[float] = []
    sent: list[float] = []
    failing: list[float] = []
    lags: list[int] = []
    errors = 0
    for seen in parts:
        prefix = _COUNTING.get(seen.component, "")
        for stage in seen.stages():
            name = str(stage["name"])
            if not name.startswith(prefix):
                continue
            lags.append(number(stage.get("lag")))
            errors += number(stage.get("errors"))
            if seen.health == "unreachable":
                continue
            for figure, found in zip(_FIGURES, (received, sent, failing), strict=True):
                rate = rates.per_second((seen.name, name, figure), now_ns)
                if rate is not None:
                    found.append(rate)
    branches = any(seen.component == "router" for seen in parts)
    return {
        "in_rate": (max(received) if branches else sum(received)) if received else None,
        "out_rate": sum(sent) if sent else None,
        "error_rate": sum(failing) if failing else None,
        "lag": (max(lags, default=0) if branches else sum(lags)),
        "errors": errors,
    }


def stages_of(
    parts: Sequence[PartSnapshot], component: str, prefix: str, rates: Rates, now_ns: int
) -> list[Document]:
    """The stages of a kind, of all parts of a component."""
    return [
        {
            "part": seen.name,
            "health": seen.health,
            "name": str(stage["name"]).removeprefix(prefix),
            "received": number(stage.get("received")),
            "sent": number(stage.get("sent")),
            "lag": number(stage.get("lag")),
            "errors": number(stage.get("errors")),
            "in_rate": rates.per_second((seen.name, str(stage["name"]), "received"), now_ns),
            "out_rate": rates.per_second((seen.name, str(stage["name"]), "sent"), now_ns),
            "detail": counts(stage.get("detail")),
        }
        for seen in parts
        if seen.component == component
        for stage in seen.stages()
        if str(stage["name"]).startswith(prefix)
    ]


def describe_collectors(parts: Sequence[PartSnapshot], rates: Rates, now_ns: int) -> list[Document]:
    """Each collector with sources, spools, and whether its account of records balances."""
    return [
        {
            "name": seen.name,
            "health": seen.health,
            "sources": stages_of([seen], "collector", "source/", rates, now_ns),
            "publishing": stages_of([seen], "collector", "publish/", rates, now_ns),
            "spools": [
                {"name": name.replace("_", "-")} | counts(seen.info(name))
                for name in ("spool", "spool_urgent", "quarantine")
                if seen.info(name)
            ],
            "account": _account(seen),
        }
        for seen in parts
        if seen.component == "collector"
    ]


def _account(seen: PartSnapshot) -> Document | None:
    """A collector's row of the account; None: it has none yet."""
    figures = CollectorFigures.read(seen.status or {})
    return None if figures is None else collector_row(seen.name, figures).as_dict()


def describe_routers(parts: Sequence[PartSnapshot], rates: Rates, now_ns: int) -> list[Document]:
    """Each job with its sinks, and their lag by stream."""
    found = []
    for seen in parts:
        if seen.component != "router":
            continue
        log, sinks = counts(seen.info("log")), seen.info("sinks")
        replays = seen.info("replays")
        waiting = counts(replays.get("files"))
        described = []
        for stage in stages_of([seen], "router", "sink/", rates, now_ns):
            more = sinks.get(stage["name"])
            more = more if isinstance(more, Mapping) else {}
            committed = counts(more.get("committed"))
            behind = {name: max(0, end - committed.get(name, 0)) for name, end in log.items()}
            described.append(
                stage
                | {
                    "problem": str(more.get("problem") or ""),
                    "restarts": number(more.get("restarts")),
                    "behind": behind,
                    "dead_letters": number(stage["detail"].get("dead_letters")),
                    "dead_letter_files": waiting.get(stage["name"], 0),
                }
            )
        job = str((seen.status or {}).get("name", seen.name))
        found.append(
            {
                "name": seen.name,
                "job": job,
                "health": seen.health,
                "sinks": described,
                "replays": {
                    "possible": replays.get("possible") is True,
                    "stoppable": replays.get("stoppable") is True,
                    "under_way": str(replays.get("under_way") or ""),
                    "progress": _texts(replays.get("progress")),
                    "last": _texts(replays.get("last")),
                },
            }
        )
    return found


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): str(one) for name, one in value.items()}
