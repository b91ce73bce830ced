"""Specs in the working tree against their published versions: what a change would break.

Nothing here reads files: `penstock.specs.versions.registry` does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from penstock.specs.errors import RefusedRecordError, RefusedSpecError
from penstock.specs.formats.schemas import json_schema
from penstock.specs.models.envelope import Record, SchemaName
from penstock.specs.validate.validator import validate_fields
from penstock.specs.versions.compat import incompatible, inlined, shape, unmet
from penstock.specs.versions.registry import Json, Published
from penstock.specs.versions.upcast import has_upcaster, upcast_record

_TIME: Final = 1_700_000_000_123_456_789
_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
_SPAN: Final = "b7ad6b7169203331"
_RECORD_ID: Final = "018bcfe5687b7cc7a3e1b9c4c0d1e2f3"
_WHO: Final = {"type": "user", "id": "u-1"}
_OF_KIND: Final[dict[str, dict[str, Any]]] = {
    "log": {"severity_number": 9, "severity_text": "INFO", "body": "order placed"},
    "span": {
        "trace_id": _TRACE,
        "span_id": _SPAN,
        "name": "checkout",
        "span_kind": "SERVER",
        "end_time_unix_nano": _TIME + 1_000_000,
        "status_code": "OK",
    },
    "metric": {"name": "shop.stock", "unit": "1", "metric_type": "gauge", "value": 17},
    "event": {"record_id": _RECORD_ID, "event_name": "shop.opened"},
    "audit": {
        "record_id": _RECORD_ID,
        "event_name": "shop.opened",
        "actor": _WHO,
        "action": "update",
        "target": _WHO,
        "outcome": "success",
    },
}
_NAMED_BY: Final = {"event": "event_name", "audit": "event_name", "metric": "name"}


def samples(model: type[Record]) -> list[dict[str, Any]]:
    """Two records in their wire form: with what a spec requires, and with all its own fields.

    Raises:
        RefusedSpecError: A field has a pattern and no `examples`.
    """
    schema = json_schema(model)
    own = {
        name: _value(inlined(schema["properties"][name], schema), f"{model.spec}: {name}")
        for name in model.own_fields
    }
    required = {name for name in own if name in schema["required"]}
    return [_record(model, {n: own[n] for n in required}), _record(model, own)]


def _record(model: type[Record], own: dict[str, Any]) -> dict[str, Any]:
    kind = str(model.model_fields["kind"].default)
    record = {
        "schema": model.spec,
        "kind": kind,
        "time_unix_nano": _TIME,
        "resource": {"service.name": "shop", "service.version": "1.4.2"},
        **_OF_KIND[kind],
    }
    if model.own_fields and kind in _NAMED_BY:
        record[_NAMED_BY[kind]] = model.model_fields[_NAMED_BY[kind]].default
    if own:
        keys = model.own_fields
        record["attributes"] = {keys[name]: own[name] for name in keys if name in own}
    return record


def _value(schema: Any, place: str) -> Any:
    """The simplest value that a schema allows."""
    if examples := schema.get("examples"):
        return examples[0]
    if "anyOf" in schema:
        return _value(schema["anyOf"][0], place)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "pattern" in schema:
        raise RefusedSpecError(f"{place} has a pattern; give it examples=[…]")
    if schema.get("type") == "array":
        return [_value(schema["items"], place)] * max(1, schema.get("minItems", 1))
    simple: dict[Any, Any] = {
        "string": "text"[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "x"),
        "integer": _number(schema, 1),
        "number": _number(schema, 0.5),
        "boolean": True,
    }
    return simple.get(schema.get("type"))


def _number(schema: Any, step: float) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is not None:
        return least + step if "exclusiveMinimum" in schema or most is None else least
    return step if most is None or most > step else most - step


UNPUBLISHED = "unpublished"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why the working tree may not be released.

    Attributes:
        field: Path with dots; empty when it is about the whole spec.
    """

    spec: str
    field: str
    rule: str
    problem: str
    fix: str

    @override
    def __str__(self) -> str:
        """Two lines: what is wrong where, and what to do."""
        place = f"{self.spec}: {self.field}" if self.field else self.spec
        return f"{place}: {self.rule}: {self.problem}\n    fix: {self.fix}"


def check(
    models: Mapping[str, type[Record]],
    published: Mapping[str, Published],
    contracts: Iterable[Json] = (),
) -> list[Finding]:
    """Compare specs with what is published.

    Args:
        models: The working tree's, by schema id.
        published: Versions of `penstock.specs.versions.registry.read`.
        contracts: Contracts of consumers.
    """
    found: list[Finding] = []
    for spec, model in sorted(models.items()):
        found += _check_spec(spec, model, published)
    found += _removed(models, published)
    for contract in contracts:
        found += _check_contract(contract, models)
    return found


def _check_spec(
    spec: str, model: type[Record], published: Mapping[str, Published]
) -> Iterator[Finding]:
    name, schema = SchemaName.parse(spec), json_schema(model)
    own = {id_: each for id_, each in published.items() if each.name.name == name.name}
    earlier = {
        f"{each.name.major}.{each.name.minor}": each.schema
        for each in own.values()
        if each.name.major == name.major and each.name.minor < name.minor
    }
    changed = spec in own and shape(own[spec].schema) != shape(schema)
    if changed:
        earlier |= {spec.partition("/")[2]: own[spec].schema}
    reasons = list(incompatible(schema, earlier))
    for each in reasons:
        yield Finding(
            spec, each.broken.field, each.broken.rule, f"{each.problem}: {each.broken.detail}",
            f"{each.fix}; or make it {name.name}/{name.major + 1}.0 with an upcaster",
        )  # fmt: skip
    if changed and not reasons:
        newest = max(e.name.minor for e in own.values() if e.name.major == name.major)
        yield Finding(
            spec, "", "published", "is published and its class has changed",
            f"the change is compatible: name it {name.name}/{name.major}.{newest + 1}",
        )  # fmt: skip
    if spec not in own:
        yield Finding(spec, "", UNPUBLISHED, "has no snapshot", "run penstock specs publish")
    if not reasons:
        yield from _check_golden(spec, model, own)


def _check_golden(
    spec: str, model: type[Record], own: Mapping[str, Published]
) -> Iterator[Finding]:
    """The golden records of every earlier version are still read."""
    name = SchemaName.parse(spec)
    for id_, each in sorted(own.items()):
        if (each.name.major, each.name.minor) > (name.major, name.minor):
            continue
        missing = [m for m in range(each.name.major, name.major) if not has_upcaster(name.name, m)]
        if missing:
            yield Finding(
                spec, "", "upcaster", f"nothing brings records of {id_} to this major version",
                f'define one: @upcast("{name.name}", {missing[0]})',
            )  # fmt: skip
            continue
        yield from _read_golden(spec, model, each, id_)


def _read_golden(spec: str, model: type[Record], old: Published, id_: str) -> Iterator[Finding]:
    major = SchemaName.parse(spec).major
    for number, golden in enumerate(old.golden):
        try:
            record = upcast_record(golden, max(major, old.name.major))
            validate_fields(model, record)
            next_major = upcast_record(golden, old.name.major + 1) if old.upcast else {}
        except (RefusedRecordError, RefusedSpecError) as error:
            yield Finding(
                spec, "", "golden", f"refuses golden record {number + 1} of {id_}: {error}",
                "let it be read as before, or upcast it",
            )  # fmt: skip
            continue
        if old.upcast and _without_schema(old.upcast[number]) != _without_schema(next_major):
            yield Finding(
                spec, "", "upcaster", f"golden record {number + 1} of {id_} is upcast otherwise",
                "an upcaster that is published gives what it gave",
            )  # fmt: skip


def _without_schema(record: Json) -> Json:
    return {key: value for key, value in record.items() if key != "schema"}


def _removed(
    models: Mapping[str, type[Record]], published: Mapping[str, Published]
) -> Iterator[Finding]:
    """Names of which the newest published version, or a later one, is not defined any more."""
    defined = [SchemaName.parse(spec) for spec in models]
    for name in sorted({each.name.name for each in published.values()}):
        newest = max(
            (each.name.major, each.name.minor)
            for each in published.values()
            if each.name.name == name
        )
        if not any(d.name == name and (d.major, d.minor) >= newest for d in defined):
            yield Finding(
                f"{name}/{newest[0]}.{newest[1]}", "", "removed",
                "is published and nothing defines it or a later version",
                "keep the class while records of it may be read, or name its --module",
            )  # fmt: skip


def _check_contract(contract: Json, models: Mapping[str, type[Record]]) -> Iterator[Finding]:
    of, major = contract.get("of"), contract.get("major")
    names = {spec: SchemaName.parse(spec) for spec in models}
    fitting = [s for s, n in names.items() if (n.name, n.major) == (of, major)]
    title = f"contract of {contract['consumer']}"
    if not fitting:
        yield Finding(
            f"{of}/{major}", "", title, "needs a spec that is not defined",
            "keep that major version, or settle it with the consumer",
        )  # fmt: skip
        return
    newest = max(fitting, key=lambda spec: names[spec].minor)
    for broken in unmet(contract, json_schema(models[newest])):
        yield Finding(
            newest, broken.field, title, f"{broken.rule}: {broken.detail}",
            "keep what the consumer needs, or settle it with them and change the contract",
        )  # fmt: skip


def unpublished(
    models: Mapping[str, type[Record]], published: Mapping[str, Published]
) -> dict[str, tuple[Json, list[Json]]]:
    """Schema and golden records of each version that is not published yet.

    Raises:
        RefusedSpecError: Golden records cannot be made up; a field needs `examples`.
    """
    return {
        spec: (json_schema(model), samples(model))
        for spec, model in sorted(models.items())
        if spec not in published
    }


def upcasts(
    models: Mapping[str, type[Record]], published: Mapping[str, Published]
) -> dict[str, list[Json]]:
    """Golden records as their next major version, of versions that have none kept yet.

    Raises:
        RefusedRecordError: An upcaster fails.
    """
    majors = {(name.name, name.major) for name in map(SchemaName.parse, models)}
    return {
        id_: [upcast_record(golden, each.name.major + 1) for golden in each.golden]
        for id_, each in sorted(published.items())
        if each.upcast is None
        and (each.name.name, each.name.major + 1) in majors
        and has_upcaster(each.name.name, each.name.major)
    }
