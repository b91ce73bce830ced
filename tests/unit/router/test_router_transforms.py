"""Transforms: the typed columns and the JSON text always say the same."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.transforms import Chain, Transform, Transformed
from penstock.router.transforms.fields import keep_entries, rename_entries
from penstock.router.transforms.sampling import randomness
from penstock.service import ConfigError
from tests.unit.router.sink_rows import SCHEMA, row
from tests.unit.router.test_router_config import load

TYPED = pa.schema(
    [
        *SCHEMA,
        pa.field("timestamp_ns", pa.int64()),
        pa.field("record_id", pa.string()),
        pa.field("trace_id", pa.string()),
        pa.field("sample_weight", pa.float64()),
        pa.field("severity_number", pa.int32()),
        pa.field("body", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("resource", pa.map_(pa.string(), pa.string())),
    ]
)
ATTRIBUTES = {"card": "4111 1111 1111 1111", "http.route": "/pay", "number": 7}
RESOURCE = {"service.name": "checkout", "host.name": "h1"}


def record_row(offset: int, **fields: Any) -> dict[str, Any]:
    """A row whose columns are what its `value` says."""
    record: dict[str, Any] = {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": 1_795_000_000_000_000_000 + offset,
        "severity_number": 9,
        "body": f"paid by ada@example.com {offset}",
        "context": {"user.id": "ada"},
        "attributes": ATTRIBUTES,
        "resource": RESOURCE,
    } | fields
    return row(
        offset,
        value=json.dumps(record).encode(),
        timestamp_ns=record["time_unix_nano"],
        record_id=record.get("record_id"),
        trace_id=record.get("trace_id"),
        sample_weight=record.get("sample_weight"),
        severity_number=record["severity_number"],
        body=record["body"] if isinstance(record["body"], str) else json.dumps(record["body"]),
        user_id=record["context"]["user.id"],
        attributes=[(key, str(value)) for key, value in record["attributes"].items()],
        resource=list(record["resource"].items()),
    )


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=TYPED)


def steps(*given: dict[str, Any]) -> list[Transform]:
    return [Transform.model_validate(step) for step in given]


def run(directory: Path, rows: pa.Table, *given: dict[str, Any], batch: int = 0) -> Transformed:
    return Chain(steps(*given), directory, key_path="routes.0.transforms").apply(rows, batch)


def both(rows: pa.Table) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row's columns, with maps as dictionaries, beside its record."""
    found = []
    for it in rows.to_pylist():
        columns = {
            name: dict(value) if name in ("attributes", "resource") and value is not None else value
            for name, value in it.items()
        }
        found.append((columns, json.loads(it["value"])))
    return found


def test_drop_takes_fields_out_of_columns_maps_and_text(tmp_path: Path) -> None:
    dropped = ["body", "user_id", "attributes.card", "resource.service.name", "severity_number"]
    ((columns, record),) = both(run(tmp_path, table(record_row(1)), {"drop": dropped}).rows)
    assert record.keys() == {
        "schema",
        "kind",
        "time_unix_nano",
        "context",
        "attributes",
        "resource",
    }
    assert record["context"] == {}
    assert record["attributes"] == {"http.route": "/pay", "number": 7}
    assert record["resource"] == {"host.name": "h1"}
    assert [columns[name] for name in ("body", "user_id", "service", "severity_number")] == [
        None
    ] * 4
    assert columns["attributes"] == {"http.route": "/pay", "number": "7"}
    assert columns["resource"] == {"host.name": "h1"}
    ((columns, record),) = both(run(tmp_path, table(record_row(1)), {"drop": ["attributes"]}).rows)
    assert "attributes" not in record
    assert columns["attributes"] == {}


def test_select_leaves_what_it_names_and_what_makes_a_record(tmp_path: Path) -> None:
    selected = ["body", "attributes.http.route", "resource.service.name"]
    ((columns, record),) = both(run(tmp_path, table(record_row(1)), {"select": selected}).rows)
    assert record == {
        "schema": "log/1.0",
        "kind": "log",
        "time_unix_nano": 1_795_000_000_000_000_001,
        "body": "paid by ada@example.com 1",
        "attributes": {"http.route": "/pay"},
        "resource": {"service.name": "checkout"},
    }
    assert (columns["service"], columns["user_id"], columns["kind"]) == ("checkout", None, "log")
    assert columns["attributes"] == {"http.route": "/pay"}
    assert columns["offset"] == 1


def test_rename_moves_attributes_and_can_exchange_two(tmp_path: Path) -> None:
    names = {"attributes.card": "attributes.http.route", "attributes.http.route": "attributes.card"}
    ((columns, record),) = both(run(tmp_path, table(record_row(1)), {"rename": names}).rows)
    assert (
        record["attributes"]["http.route"]
        == columns["attributes"]["http.route"]
        == ATTRIBUTES["card"]
    )
    assert record["attributes"]["card"] == columns["attributes"]["card"] == "/pay"
    replaced = {"rename": {"attributes.card": "attributes.number"}}
    ((columns, record),) = both(run(tmp_path, table(record_row(1)), replaced).rows)
    assert record["attributes"] == {"http.route": "/pay", "number": ATTRIBUTES["card"]}
    assert columns["attributes"] == record["attributes"]


def test_mask_replaces_what_a_pattern_finds_or_all(tmp_path: Path) -> None:
    email = {"mask": {"fields": ["body"], "pattern": r"[\w.]+@[\w.]+", "replacement": "<email>"}}
    whole = {"mask": {"fields": ["user_id", "attributes.card", "attributes.number"]}}
    ((columns, record),) = both(run(tmp_path, table(record_row(1)), email, whole).rows)
    assert record["body"] == columns["body"] == "paid by <email> 1"
    assert record["context"] == {"user.id": "***"}
    assert columns["user_id"] == "***"
    masked = {"card": "***", "http.route": "/pay", "number": "***"}
    assert record["attributes"] == columns["attributes"] == masked


def test_a_body_that_is_no_text_is_masked_as_its_json(tmp_path: Path) -> None:
    rows = table(record_row(1, body={"mail": "ada@example.com"}))
    done = run(tmp_path, rows, {"mask": {"fields": ["body"], "pattern": "ada", "replacement": "x"}})
    assert b"ada@" not in done.rows["value"][0].as_py()
    assert "ada" not in done.rows["body"][0].as_py()


def test_hash_is_keyed_and_the_same_everywhere(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef\n")
    hashed = {"hash": {"fields": ["user_id", "resource.service.name"], "key_file": str(key)}}
    done = both(run(tmp_path, table(record_row(1), record_row(2)), hashed).rows)
    # printf ada | openssl dgst -sha256 -hmac 0123456789abcdef
    want = "83eeb38e004a295359bde4b0760bb271a6e9e614701bce5053849938a657c6ec"
    assert done[0][0]["user_id"] == want
    assert {c["user_id"] for c, _ in done} == {r["context"]["user.id"] for _, r in done}
    assert {c["service"] for c, _ in done} == {c["resource"]["service.name"] for c, _ in done}
    assert "ada" not in str(done[0][0]["user_id"])
    key.write_text("another key, 16 bytes")
    other = both(run(tmp_path, table(record_row(1)), hashed).rows)
    assert other[0][0]["user_id"] != done[0][0]["user_id"]


def test_a_row_that_is_no_record_is_not_let_past_a_mask(tmp_path: Path) -> None:
    rows = table(record_row(1), row(2, value=b"ada@example.com"), row(3, value=None))
    done = run(tmp_path, rows, {"mask": {"fields": ["body"]}})
    assert done.rows["offset"].to_pylist() == [1]
    assert done.refused["offset"].to_pylist() == [2, 3]
    assert done.refused["value"][0].as_py() == b"ada@example.com"


def test_sampling_keeps_whole_traces_and_weighs_them(tmp_path: Path) -> None:
    traces = [f"{number * 0x9E3779B97F4A7C15 % 2**128:032x}" for number in range(1, 400)]
    rows = table(*(record_row(2 * n + k, trace_id=t) for n, t in enumerate(traces) for k in (0, 1)))
    done = run(tmp_path, rows, {"sample": {"rate": 0.25}})
    kept = done.rows["trace_id"].to_pylist()
    assert 60 < len(set(kept)) < 140
    assert len(kept) == 2 * len(set(kept))
    assert set(done.rows["sample_weight"].to_pylist()) == {4.0}
    assert {record["sample_weight"] for _, record in both(done.rows)} == {4.0}
    assert done.left_out == {"sample": rows.num_rows - len(kept)}
    lower = run(tmp_path, rows, {"sample": {"rate": 0.1}}).rows["trace_id"].to_pylist()
    assert set(lower) < set(kept)
    again = run(
        tmp_path,
        table(record_row(1, trace_id=kept[0], sample_weight=10.0)),
        {"sample": {"rate": 0.25}},
    )
    assert again.rows["sample_weight"].to_pylist() == [40.0]


def test_what_has_no_trace_is_sampled_by_its_id_or_place(tmp_path: Path) -> None:
    rows = table(*(record_row(number) for number in range(1000)))
    done = run(tmp_path, rows, {"sample": {"rate": 0.5}})
    assert 400 < done.rows.num_rows < 600
    assert done.rows.equals(run(tmp_path, rows, {"sample": {"rate": 0.5}}).rows)
    by = {"sample": {"rate": 0.5, "by": "attributes.card"}}
    assert run(tmp_path, rows, by).rows.num_rows in (0, 1000)


@given(st.text(max_size=40))
def test_randomness_is_a_56_bit_number(text: str) -> None:
    assert 0 <= randomness(text, "salt") < 2**56


SECOND = 1_000_000_000


def seen(*ids_and_seconds: tuple[str | None, int]) -> pa.Table:
    rows = [
        record_row(n, record_id=name) | {"timestamp_ns": at * SECOND}
        for n, (name, at) in enumerate(ids_and_seconds)
    ]
    return table(*rows)


DEDUPE = {"dedupe": {"within_s": 10, "max_ids": 1000}}


def test_what_was_there_within_the_window_is_left_out(tmp_path: Path) -> None:
    chain = Chain(steps(DEDUPE), tmp_path, key_path="")
    first = chain.apply(seen(("a", 100), ("b", 100), ("a", 101), (None, 101), (None, 101)), 0)
    assert first.rows["record_id"].to_pylist() == ["a", "b", None, None]
    assert first.left_out == {"dedupe": 1}
    assert chain.apply(seen(("a", 110), ("b", 111)), 1).rows["record_id"].to_pylist() == ["b"]


def test_a_batch_that_comes_again_is_judged_as_before_also_after_a_restart(tmp_path: Path) -> None:
    chain = Chain(steps(DEDUPE), tmp_path, key_path="")
    chain.apply(seen(("a", 100)), 0)
    second = seen(("a", 101), ("b", 101))
    want = chain.apply(second, 1).rows
    assert want["record_id"].to_pylist() == ["b"]
    assert chain.apply(second, 1).rows.equals(want)
    restarted = Chain(steps(DEDUPE), tmp_path, key_path="")
    assert restarted.apply(second, 1).rows.equals(want)
    assert restarted.apply(seen(("b", 102)), 2).rows.num_rows == 0


def test_what_is_remembered_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    chain = Chain(steps(DEDUPE), tmp_path, key_path="")
    for batch in range(30):
        chain.apply(seen((f"id-{batch}", 100 + batch)), batch)
    assert len(list(tmp_path.glob("*.arrow"))) <= 13
    many = Chain(steps(DEDUPE), tmp_path / "many", key_path="")
    many.apply(seen(*((f"id-{n}", 100 + n // 1000) for n in range(1500))), 0)
    known = many.apply(seen(("id-0", 102), ("id-1499", 102)), 1).rows["record_id"].to_pylist()
    assert known == ["id-0"], "the oldest are forgotten first"


def test_a_mapping_makes_documents_and_leaves_the_columns(tmp_path: Path) -> None:
    rows = table(record_row(1), record_row(2, observed_time_unix_nano="never"))
    ecs = run(tmp_path, rows, {"map": "ecs"})
    ((columns, document),) = both(ecs.rows)
    assert document["message"] == "paid by ada@example.com 1"
    assert document["service.name"] == columns["service"] == "checkout"
    assert ecs.refused["offset"].to_pylist() == [2], "no time that ECS has"
    ((_, event),) = both(run(tmp_path, rows.slice(0, 1), {"map": "splunk_cim"}).rows)
    assert event["_time"] == pytest.approx(1_795_000_000.0)
    assert (event["user_id"], event["app"], event["host"]) == ("ada", "checkout", "h1")
    assert (event["severity"], event["uri_route"]) == ("low", "/pay")
    ((_, entry),) = both(run(tmp_path, rows.slice(0, 1), {"map": "loki"}).rows)
    assert entry["labels"] == {"service_name": "checkout", "kind": "log"}
    assert entry["timestamp"] == "1795000000000000001"
    assert entry["metadata"]["http_route"] == "/pay"
    assert entry["metadata"]["user_id"] == "ada"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([{"drop": ["bdoy"]}], "routes.0.transforms.0.drop.0: there is no field 'bdoy'"),
        ([{"drop": ["kind"]}], "drop.0: kind cannot be taken away"),
        ([{"drop": ["body"], "select": ["body"]}], "transforms.0: each step has one key"),
        ([{"mask": {"fields": ["body"], "pattern": "("}}], "mask.pattern: not a regular"),
        ([{"mask": {"fields": ["severity_number"]}}], "mask.fields.0: severity_number is no text"),
        (
            [{"mask": {"fields": ["body"], "pattern": "a", "replacement": "\\4"}}],
            "0.mask: replacem",
        ),
        ([{"rename": {"body": "attributes.x"}}], "rename.body: body cannot be renamed"),
        ([{"sample": {"rate": 1.5}}], "sample.rate"),
        ([{"map": "ecs"}, {"drop": ["body"]}], "transforms: map must be the last"),
        ([{"map": "xml"}], "transforms.0.map"),
        ([{"dedupe": {}}, {"dedupe": {}}], "transforms: dedupe stands there twice"),
        ([{"dedupe": None}], "transforms.0: dedupe: has no settings"),
    ],
)
def test_a_mistake_in_a_step_is_refused_with_its_place(
    tmp_path: Path, given: list[dict[str, Any]], place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, routes=[{"name": "all", "transforms": given, "sinks": ["lake"]}])
    assert place in caught.value.reason


def test_a_key_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path) -> None:
    step = {"hash": {"fields": ["body"], "key_file": str(tmp_path / "none")}}
    with pytest.raises(ConfigError, match=r"routes.0.transforms.0.hash.key_file: .*cannot be read"):
        Chain(steps(step), tmp_path, key_path="routes.0.transforms")
    (tmp_path / "none").write_text("short")
    with pytest.raises(ConfigError, match="shorter than 16"):
        Chain(steps(step), tmp_path, key_path="routes.0.transforms")


MAPS = st.lists(
    st.none() | st.dictionaries(st.sampled_from("abcde"), st.text(max_size=3), max_size=5),
    max_size=12,
)
NESTED = {
    "user": {"email": "ada@example.com", "roles": [{"email": "root@example.com"}, "admin"]},
    "user.email": "flat@example.com",
    "http.route": "/pay",
    "list": [{"user": {"email": "list@example.com"}}],
    "number": 7,
}


@pytest.mark.parametrize(
    ("field", "hidden"),
    [
        ("attributes.*", ["ada@", "root@", "flat@", "list@", "/pay"]),
        ("attributes.user.email", ["ada@", "flat@"]),
        ("attributes.user.*", ["ada@", "root@", "flat@"]),
        ("attributes.*email", ["ada@", "root@", "flat@", "list@"]),
        ("attributes.list.user.email", ["list@"]),
        ("attributes.user", ["ada@", "root@"]),
    ],
)
@pytest.mark.parametrize("verb", ["mask", "drop", "hash"])
@pytest.mark.parametrize("has_value", [True, False])
def test_a_rule_for_nested_names_and_patterns_hides_what_it_names_and_nothing_else(
    tmp_path: Path, field: str, hidden: list[str], verb: str, has_value: bool
) -> None:
    """Such a rule was once accepted, and left the value where it was."""
    key = tmp_path / "key"
    key.write_text("k" * 32)
    by_verb: dict[str, dict[str, Any]] = {
        "mask": {"mask": {"fields": [field]}},
        "hash": {"hash": {"fields": [field], "key_file": str(key)}},
        "drop": {"drop": [field]},
    }
    step = by_verb[verb]
    its = row_with(NESTED)
    rows = table(its, record_row(1))
    rows = rows if has_value else rows.drop_columns(["value"])
    changed: list[tuple[str, int]] = []
    chain = Chain(steps(step), tmp_path, key_path="routes.0.transforms")
    said = str(chain.apply(rows, 0, changed).rows.select(["attributes"]).to_pylist()[0])
    texts = [said]
    if has_value:
        record = json.loads(chain.apply(rows, 0).rows["value"][0].as_py())
        texts.append(json.dumps(record["attributes"]))
    for text in texts:
        seen = [it for it in ("ada@", "root@", "flat@", "list@", "/pay") if it in text]
        assert not {*seen} & {*hidden}, text
        assert {*seen} == {"ada@", "root@", "flat@", "list@", "/pay"} - {*hidden}
    assert changed == [(verb, 2 if field == "attributes.*" else 1)]


def row_with(attributes: dict[str, Any]) -> dict[str, Any]:
    """A row whose column `attributes` has nested values as their JSON."""
    made = record_row(0, attributes=attributes)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}
    return made | {"attributes": list(texts.items())}


@pytest.mark.parametrize(
    "step",
    [
        {"mask": {"fields": ["attribute.*"]}},
        {"drop": ["user_*"]},
        {"rename": {"attributes.a*": "attributes.b"}},
        {"sample": {"rate": 0.5, "by": "attributes.*"}},
        {"mask": {"fields": ["body.user.email"]}},
    ],
)
def test_a_name_that_can_match_nothing_is_refused(step: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"there is no field|may be several fields"):
        steps(step)


NAMES = st.dictionaries(st.sampled_from("abcde"), st.sampled_from("abcdxy"), max_size=4).filter(
    lambda names: len(set(names.values())) == len(names)
)


def as_maps(rows: list[dict[str, str] | None]) -> pa.MapArray:
    return pa.array(
        [None if it is None else list(it.items()) for it in rows], pa.map_(pa.string(), pa.string())
    )


def as_rows(maps: pa.MapArray) -> list[dict[str, str] | None]:
    return [None if it is None else dict(it) for it in maps.to_pylist()]


@given(MAPS, NAMES, st.integers(0, 4))
def test_renamed_entries_are_those_of_renamed_dictionaries(
    rows: list[dict[str, str] | None], names: dict[str, str], begin: int
) -> None:
    want = []
    for each in rows[begin:]:
        moved = None if each is None else {k: v for k, v in each.items() if k not in names}
        if each is not None and moved is not None:
            moved |= {new: each[old] for old, new in names.items() if old in each}
        want.append(moved)
    maps = rename_entries(as_maps(rows).slice(begin), names)
    assert as_rows(maps) == want
    assert maps.validate(full=True) is None
    assert all(len(dict(it)) == len(it) for it in maps.to_pylist() if it is not None)


@given(MAPS, st.sets(st.sampled_from("abcde")), st.integers(0, 4))
def test_kept_entries_are_those_of_filtered_dictionaries(
    rows: list[dict[str, str] | None], names: set[str], begin: int
) -> None:
    def wanted(keys: pa.Array) -> pa.Array:
        return pa.array([key in names for key in keys.to_pylist()], pa.bool_())

    want = [
        None if it is None else {k: v for k, v in it.items() if k in names} for it in rows[begin:]
    ]
    assert as_rows(keep_entries(as_maps(rows).slice(begin), wanted)) == want
