"""Contents of a lake's `_index`: open plans, and the files that hold each record once.

    _index/plans/ID.json      {"format": 1, "directory": "kind=log/…", "merges": true,
                               "time_ns": 17…,
                               "sources": [["kind=log/…/logs.5f2c19aa-0-….parquet", 4711, 17…]]}
    _index/plans/ID.decided   {"decision": "merged", "time_ns": 17…}
    _index/plans/ID.shown     {"time_ns": 17…}
    _index/live.json          a JSON object a line: {"path": "/lake/kind=log/….parquet"}
    _index/terms/…            whose turn it is: `penstock.router.storage.lease`

Sources are path, bytes, and when they were last written. `live.json` is written after each pass of
compaction; files that came since are not in it.
"""

import json
from collections.abc import Container
from typing import Any, Final

from penstock.router.lake.layout import LakeFile
from penstock.router.lake.plan import Decision, Plan, PlanState, live_files
from penstock.router.lake.store import LakeStore
from penstock.service.data_format import DataFormatError

FORMAT: Final = 1
_PLANS: Final = "plans"
LIVE: Final = "live.json"


class LakeIndex:
    """The index of one lake.

    Args:
        caches: Whether a plan that was read is cached. For a pass under the lease: by the time
            that a plan's name may come again, such an index has to be gone.
    """

    def __init__(self, store: LakeStore, *, caches: bool = False) -> None:
        self._store = store
        self._caches = caches
        self._objects = store.objects
        self._known: dict[str, dict[str, Any]] = {}

    def plans(self) -> tuple[PlanState, ...]:
        """Return the plans that are not forgotten, by name.

        Raises:
            DataFormatError: A later version made one.
        """
        names = set(self._objects.names(_PLANS))
        self._known = {
            name: it for name, it in self._known.items() if self._caches and name in names
        }
        told = sorted(name for name in names if name.endswith(".json"))
        return tuple(filter(None, (self._state(name, names) for name in told)))

    def create(self, plan: Plan, now_ns: int) -> None:
        """Write a plan down, unless it is."""
        sources = [[it.path, it.size, it.modified_ns] for it in plan.sources]
        told = {
            "format": FORMAT,
            "directory": plan.directory,
            "merges": plan.merges,
            "time_ns": now_ns,
            "sources": sources,
        }
        self._objects.create(_name(plan.id, "json"), json.dumps(told).encode())

    def decide(self, plan: Plan, decision: Decision, now_ns: int) -> Decision:
        """Make a plan's decision, unless there is one; returns which it is."""
        told = {"decision": decision, "time_ns": now_ns}
        if self._objects.create(_name(plan.id, "decided"), json.dumps(told).encode()):
            return decision
        found = self._objects.get(_name(plan.id, "decided"))
        made: Decision = "cancelled" if found is None else json.loads(found)["decision"]
        return made

    def note_shown(self, plan: Plan, now_ns: int) -> None:
        """Write down that readers by listing see the merged file only."""
        told = json.dumps({"time_ns": now_ns}).encode()
        self._objects.create(_name(plan.id, "shown"), told)

    def forget(self, plan: Plan) -> None:
        """Remove a plan; what it said goes last, for without it the rest means nothing."""
        for kind in ("json", "decided", "shown"):
            self._objects.remove(_name(plan.id, kind))

    def remove_remnants(self) -> None:
        """Remove what was said of plans that are forgotten."""
        names = self._objects.names(_PLANS)
        for name in names:
            if f"{name.rpartition('.')[0]}.json" not in names:
                self._objects.remove(name)

    def live(self) -> list[str]:
        """The paths of the files that hold each record once, as of a moment during the call.

        Each stays readable for as long as the lake's `keep_s`.
        """
        plans = self.plans()
        while True:
            files = self._store.files()
            again = self.plans()
            if plans == again:
                return live_files((it.path for it in files), plans)
            plans = again

    def write_live(self) -> None:
        """Write the list of them, for readers of JSON."""
        lines = (json.dumps({"path": self._store.locate(path)}) for path in self.live())
        self._objects.put(LIVE, "".join(f"{line}\n" for line in lines).encode())

    def _state(self, name: str, names: Container[str]) -> PlanState | None:
        plan_id = name.rpartition("/")[2].removesuffix(".json")
        told = self._remembered(name, names)
        if told is None:
            return None
        if told["format"] != FORMAT:
            raise DataFormatError(
                f"{self._store.url}: {name} has format {told['format']}, and not {FORMAT}",
                fix="use the version of Penstock that made it, or a later one",
            )
        sources = tuple(LakeFile(*it) for it in told["sources"])
        plan = Plan(plan_id, told["directory"], sources, told["merges"])
        decided = self._remembered(_name(plan_id, "decided"), names)
        shown = self._remembered(_name(plan_id, "shown"), names)
        if decided is None:
            return PlanState(plan, told["time_ns"])
        return PlanState(
            plan,
            told["time_ns"],
            decided["decision"],
            decided["time_ns"],
            None if shown is None else shown["time_ns"],
        )

    def _remembered(self, name: str, names: Container[str]) -> dict[str, Any] | None:
        """An object of those that were listed; None: it is none of them, or gone by now."""
        if name not in names:
            return None
        if name not in self._known:
            data = self._objects.get(name)
            if data is None:
                return None
            self._known[name] = json.loads(data)
        return self._known[name]


def _name(plan_id: str, kind: str) -> str:
    return f"{_PLANS}/{plan_id}.{kind}"
