"""Objects with slots for the keys that were met give the same columns as those with all slots."""

import json
import random
from typing import Any

import msgspec
import pytest

from penstock.router.columns.decode import FEW, MET_MAX, NULL, RowTypes
from tests.unit.router.test_router_conversion import LOG, METRIC, TORN, shaped

SPAN: dict[str, Any] = {
    "schema": "span/1.0", "kind": "span", "time_unix_nano": 5, "end_time_unix_nano": 6, "name": "s",
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "attributes": {"a": {"b": [1, " x "]}},
}  # fmt: skip
EVERY_MARK = ("malformed", "malformed_reason", "malformed_value")


def a_text(dice: random.Random) -> Any:
    """A record, often with keys that none before it had, or with what is no record."""
    if dice.random() < 0.05:
        return dice.choice([None, b"", b"[]", b"no", TORN % b"log/1.0", b'{"kind":"log"'])
    record = dict(dice.choice([LOG, METRIC, SPAN]))
    for key in dice.sample(sorted(record), dice.randint(0, 3)):
        del record[key]
    for _ in range(dice.randint(0, 2)):
        key = dice.choice(["unit", "reason", "links", "a", "é", 'q"', "b\\", "n\n", "", "kind"])
        record[key] = dice.choice([None, 1, 2**70, "text", [], ["a"], {}, {"x": None}])
    if dice.random() < 0.1:
        record[f"new{dice.random()}"] = 1
    if dice.random() < 0.05:
        record["schema"] = dice.choice(["log/0.9", "log/7.0", 3, None])
    return json.dumps(record).encode()


def types_for(*wanted: str, **others: Any) -> RowTypes:
    """With more keys than those that are named, so that it makes sense to know which are met."""
    keys = [*wanted, *(f"unused{number}" for number in range(FEW))]
    types = {key: others.get(key, str | None) for key in keys}
    return RowTypes({key: f"f{number}" for number, key in enumerate(keys)}, types)


def alone(texts: list[Any], *columns: str) -> list[dict[str, Any]]:
    """Each as if none had been met before."""
    found = []
    for number, text in enumerate(texts):
        (row,) = shaped([text], *columns)
        place = {"offset": 100 + number, "subject": f"s.{number % 2}"}
        found.append(row | {name: it for name, it in place.items() if name in row})
    return found


@pytest.mark.parametrize("seed", range(60))
def test_columns_do_not_depend_on_what_was_met_before(seed: int) -> None:
    dice = random.Random(seed)
    texts = [a_text(dice) for _ in range(dice.randint(1, 60))]
    assert shaped(texts) == alone(texts)


def test_a_key_is_met_once_and_then_known() -> None:
    types = types_for("kind", "unit")
    types.decode_unmet(b'{"kind":"log","other":[1]}')
    row = types.decode(b'{"other":{},"kind":"span"}')
    assert (row.f0, row.f1) == ("span", None)
    assert types.present == {"kind"}
    with pytest.raises(ValueError, match="unit"):
        types.decode(b'{"unit":"s"}')
    assert types.decode_unmet(b'{"unit":"s"}').f1 == "s"
    assert types.decode(b'{"unit":"ms"}').f1 == "ms"
    assert types.present == {"kind", "unit"}


@pytest.mark.parametrize("key", ['"', "\\", "\n"])
def test_a_key_that_cannot_be_a_field_is_taken_all_the_same(key: str) -> None:
    types = types_for("kind", "links", links=msgspec.Raw)
    text = json.dumps({key: 1, "kind": "log"}).encode()
    assert types.decode_unmet(text).f0 == "log"
    assert types.decode(text).f1 is NULL


def test_slots_are_bounded() -> None:
    types = types_for("kind")
    for number in range(MET_MAX + 10):
        text = b'{"kind":"log","k%d":1}' % number
        try:
            types.decode(text)
        except msgspec.ValidationError:
            types.decode_unmet(text)
    assert types.decode(b'{"kind":"log","none of those":1}').f0 == "log"


def test_what_is_malformed_says_so_when_its_keys_were_met() -> None:
    texts = [
        LOG,
        LOG | {"dropped_events_count": "3"},
        LOG,
        LOG | {"bucket_counts": 4},
        METRIC,
        b"{",
        LOG,
    ]
    met = shaped(texts, *EVERY_MARK)
    assert [row["malformed"] for row in met] == [False, True, False, True, False, True, False]
    assert met == alone(texts, *EVERY_MARK)


def test_of_few_wanted_keys_all_have_slots_at_once() -> None:
    types = RowTypes({"kind": "f0"}, {"kind": str | None})
    assert types.decode(b'{"kind":"log","other":1}').f0 == "log"
    assert types.present == {"kind"}
