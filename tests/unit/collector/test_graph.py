"""The graph: how it is wired, and that every record in it is accounted for."""

from collections import Counter
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from penstock.collector.decode.lines import LineContext, PlainLines
from penstock.collector.ledger import Ledger
from penstock.collector.transforms.filter import Filter
from penstock.collector.transforms.graph.graph import Chunk, Outcome
from penstock.collector.transforms.graph.wiring import WiringError
from penstock.collector.transforms.transform import DropReason
from penstock.specs.redact.scrubber import Scrubber
from penstock.specs.validate.validator import check_line
from penstock.specs.validate.verdict import Accepted
from tests.support.collector_graph import RESOURCE, delivered, graph_of, log, process, total

HUGE = log()[:-1] + b',"unknown":1180591620717411303424}'
FILTER: dict[str, Any] = {"type": "filter", "where": "true"}


def filters(**inputs: list[str]) -> dict[str, Any]:
    return {name: {**FILTER, "inputs": given} for name, given in inputs.items()}


ROUTE = {"type": "route", "inputs": ["app"], "routes": {"a": {"where": "true"}}}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"transforms": filters(a=["ap"])},
            "a.inputs.0: there is no source or transform 'ap'; did you mean app?",
        ),
        ({"transforms": filters(a=["app", "app"])}, "named twice"),
        ({"transforms": filters(app=["app"])}, "a source has that name"),
        ({"transforms": filters(output=["app"])}, "that name is taken"),
        ({"transforms": filters(a=["c"], b=["a"], c=["b"])}, "in a circle: b -> c -> a -> b"),
        ({"transforms": filters(a=["a"])}, "in a circle: a -> a"),
        (
            {"transforms": {"r": ROUTE, **filters(b=["r"])}},
            "several outputs; name one: r.a, r.unmatched",
        ),
        (
            {"transforms": filters(a=["app"]), "output": {"inputs": ["app"]}},
            "transforms.a: nobody takes its records",
        ),
        (
            {"transforms": filters(a=["app"], b=["app"]), "output": {"inputs": ["a"]}},
            "transforms.b: nobody",
        ),
        (
            {"transforms": {"r": ROUTE}, "output": {"inputs": ["r.a"]}},
            "transforms.r.unmatched: nobody",
        ),
        ({"output": {"inputs": ["nobody"]}}, "output.inputs.0: there is no source or"),
    ],
)
def test_a_wrong_graph_is_refused_with_the_key(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(WiringError) as caught:
        graph_of(keys)
    assert words in str(caught.value)


def test_a_graph_that_would_flood_is_refused() -> None:
    transforms: dict[str, Any] = {}
    before = ["app"]
    for level in range(7):
        names = [f"a{level}", f"b{level}"]
        transforms |= filters(**dict.fromkeys(names, before))
        before = names
    with pytest.raises(WiringError, match="one record would become 128"):
        graph_of({"transforms": transforms})


def test_ends_lead_to_the_output_unless_it_says_otherwise() -> None:
    keys: dict[str, Any] = {"transforms": filters(a=["app"], b=["app"])}
    assert len(delivered(process(graph_of(keys), log()))) == 2
    keys["output"] = {"inputs": ["app", "a", "b"]}
    assert len(delivered(process(graph_of(keys), log()))) == 3


def test_copies_for_one_subject_are_in_chains_of_their_own() -> None:
    """Sequences of a chain rise; copies of a record share theirs."""
    outcome = process(graph_of({"transforms": filters(a=["app"], b=["app"])}), log(), log())
    assert {key: batch.sequences for key, batch in outcome.batches.items()} == {
        ("telemetry.logs.shop", 0): [1, 2],
        ("telemetry.logs.shop", 1): [1, 2],
    }
    assert outcome.copies == 2


def test_a_source_that_is_gone_from_the_configuration_is_still_delivered() -> None:
    outcome = process(graph_of({"transforms": filters(a=["app"])}), log(), source="gone")
    assert len(delivered(outcome)) == 1


def test_without_transforms_lines_go_on_as_bytes_and_with_a_template_elsewhere() -> None:
    given = orjson.dumps({**orjson.loads(log()), "resource": {"service.name": "s"}})
    [(key, batch)] = process(graph_of({}), given, resource=b"").batches.items()
    assert key == ("telemetry.logs.s", 0)
    assert batch.lines[0] is given
    outcome = process(graph_of({"output": {"subject": "eu.{kind}.{service}"}}), given, resource=b"")
    assert [*outcome.batches] == [("eu.logs.s", 0)]


def test_a_record_is_redacted_wherever_it_stands_among_those_made_together() -> None:
    texts = [f"line {number}" for number in range(9)]
    texts[4] = "to ann@example.com"
    context = LineContext(orjson.loads(RESOURCE), {"log.file.path": "/var/log/app.log"})
    made = PlainLines(context, 1).make_together([*map(str.encode, texts)])
    records = [*filter(None, made.lines)]
    whole = Chunk("app", 0, [*range(9)], records, b"", 1, made.verdicts, parts=made.parts)
    timed = replace(whole, ended={0: "filter", 1: "filter"})
    texts[4] = "to [redacted:pii]"
    for chunk, first in ((whole, 0), (whole.part(3, 6), 3), (timed, 2)):
        for keys in ({}, {"transforms": filters(a=["app"])}):
            found = delivered(graph_of(keys).process(chunk, 0))
            bodies = [record["body"] for _, record in found]
            assert texts[first : first + len(chunk.lines) - len(chunk.ended)] == bodies


def test_an_integer_that_cannot_be_written_again_is_refused_only_when_it_must_be() -> None:
    assert len(delivered(process(graph_of({}), HUGE))) == 1
    for keys in ({}, {"transforms": filters(a=["app"])}):
        outcome = process(graph_of(keys), HUGE.replace(b"paid", b"4111 1111 1111 1111"))
        assert [one.reason for one in outcome.refused] == ["integer_too_large"]


@pytest.mark.parametrize(
    "section",
    [
        {"type": "reduce", "key": "kind"},
        {"type": "edit", "set": {"attributes.a": "'x'"}},
        {"type": "explode", "field": "attributes.list"},
    ],
)
def test_a_transform_that_must_write_such_an_integer_says_so(section: dict[str, Any]) -> None:
    """These transforms measure the record, or change it."""
    given = HUGE.replace(b'"body"', b'"attributes":{"list":["a"]},"body"')
    outcome = process(graph_of({"transforms": {"t": {"inputs": ["app"], **section}}}), given)
    assert [one.reason for one in outcome.refused] == ["transform t: integer_too_large"]


def test_a_source_waits_for_a_throttle_also_when_its_records_are_filtered_behind_it() -> None:
    throttle = {"type": "throttle", "inputs": ["app"], "rate": 1, "when_exceeded": "block"}
    behind = {"type": "filter", "inputs": ["slow"], "where": "false"}
    outcome = process(graph_of({"transforms": {"slow": throttle, "none": behind}}), log(), log())
    assert outcome.pause_ns == 10**9


SECTIONS: list[dict[str, Any]] = [
    {"type": "filter", "where": "severity_number < 17"},
    {"type": "filter", "where": "attributes.a > 1 || body.contains('x')"},
    {"type": "parse", "format": "json", "lift": {"body": "b", "time": "t"}},
    {"type": "parse", "format": "logfmt", "on_failure": "quarantine"},
    {
        "type": "edit",
        "set": {"severity_number": "int(attributes.a)", "body": "string(attributes.b)"},
    },
    {"type": "edit", "rename": {"attributes.a": "attributes.b"}, "remove": ["body"]},
    {"type": "redact", "patterns": {"p": "[a-f]+"}},
    {"type": "sample", "ratio": 0.5},
    {"type": "throttle", "rate": 1, "burst": 2},
    {"type": "dedupe", "key": "body"},
    {"type": "logs_to_metrics", "name": "m.n", "dimensions": {"d": "body"}, "max_series": 2},
    {
        "type": "route",
        "routes": {"x": {"where": "attributes.a == 1", "subject": "o.{attributes.b}"}},
    },
    {"type": "enrich", "host": True},
]


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Any graph whose transforms take from those before them."""
    ports, transforms = ["app"], {}
    for number in range(draw(st.integers(1, 5))):
        name = f"t{number}"
        section = draw(st.sampled_from(SECTIONS))
        chosen = draw(st.lists(st.sampled_from(ports), min_size=1, max_size=2, unique=True))
        own = {"seed": name} if section["type"] == "sample" else {}
        transforms[name] = {**section, **own, "inputs": chosen}
        is_route = section["type"] == "route"
        ports += [f"{name}.x", f"{name}.unmatched"] if is_route else [name]
    return {"transforms": transforms}


VALUES = st.none() | st.integers(-3, 30) | st.floats(allow_nan=False) | st.text(max_size=6)
LINES = st.lists(
    st.binary(max_size=40)
    | st.sampled_from([HUGE, HUGE.replace(b"paid", b"4111 1111 1111 1111")])
    | st.builds(
        lambda body, number, attributes: log(body, severity_number=number, attributes=attributes),
        st.sampled_from(["", "x", '{"b":"y","t":1e9,"a":1}', "a=1 b=2", "ff@aa.example"]),
        st.integers(0, 25),
        st.dictionaries(st.sampled_from(["a", "b"]), VALUES),
    ),
    max_size=12,
)  # fmt: skip


def _summary(outcome: Outcome) -> Any:
    return (
        {key: (batch.sequences, batch.lines) for key, batch in outcome.batches.items()},
        outcome.refused, outcome.ended, outcome.copies,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(graphs(), LINES)
def test_every_record_is_accounted_for_in_any_graph(
    keys: dict[str, Any], lines: list[bytes]
) -> None:
    graph, twin = graph_of(keys), graph_of(keys)
    outcome = process(graph, *lines)
    assert total(outcome) == len(lines) + outcome.copies
    assert not [r for r in outcome.refused if "bug in Penstock" in r.reason]
    assert _summary(outcome) == _summary(process(twin, *lines))
    for batch in outcome.batches.values():
        assert batch.sequences == sorted(set(batch.sequences))
        assert batch.size == sum(map(len, batch.lines))
    made = graph.flush(0, 10**18, everything=True)
    for name, created in made.items():
        again = process(graph, *created, source=name, resource=b"")
        assert total(again) == len(created) + again.copies
        assert all(r.reason.startswith("transform") for r in again.refused)


def test_the_account_balances_with_every_ending() -> None:
    ledger = Ledger()
    ledger.read("app", 10)
    outcome = Outcome(copies=3, ended=Counter({DropReason.FILTERED: 4, DropReason.SAMPLED: 2}))
    ledger.sorted("app", taken=10, copies=3, refused=1)
    account = ledger["app"]
    account.filtered, account.sampled, account.in_queues = 4, 2, 6
    assert outcome.copies == account.copied
    assert account.pending == 1
    assert account.difference == 0


def test_a_transform_that_fails_stops_no_other_record() -> None:
    graph = graph_of({"transforms": filters(a=["app"])})

    class Broken(Filter):
        @override
        def apply(self, event: Any, now_ns: int) -> str:
            raise ZeroDivisionError(event.fields["body"])

    graph.steps["a"].transform = Broken(lambda _: True)
    outcome = process(graph, log("secret"), b"{}")
    assert [r.reason for r in outcome.refused] == [
        "transform a: failed with ZeroDivisionError; this is a bug in the package tests",
        "bad_kind",
    ]


def parts_of(outcome: Outcome) -> tuple[list[tuple[str, dict[str, Any]]], list[str], int]:
    return delivered(outcome), [one.reason for one in outcome.refused], outcome.scrubbed


@given(
    st.lists(
        st.sampled_from(
            [
                log(), log("to a@example.com"), log("x", resource={"service.name": "cart"}), b"{",
                log("x", newer=1), log("x", attributes={"password": "p"}), HUGE,
            ]
        ),
        max_size=5,
    )
)  # fmt: skip
def test_records_that_come_together_fare_as_each_alone(lines: list[bytes]) -> None:
    graph = graph_of({})
    together = process(graph, *lines)
    each = [process(graph, line, first=number) for number, line in enumerate(lines, 1)]
    found, reasons, scrubbed = parts_of(together)
    expected = [parts_of(one) for one in each]
    assert sorted(map(repr, found)) == sorted(repr(one) for part in expected for one in part[0])
    assert sorted(reasons) == sorted(reason for part in expected for reason in part[1])
    assert scrubbed == sum(part[2] for part in expected)
    for batch in together.batches.values():
        assert batch.size == sum(map(len, batch.lines))
        assert batch.sequences == sorted(batch.sequences)


SENSITIVE = ["paid", "to ann@example.com", "a=1 b=ann@example.com", "4111 1111 1111 1111", "é\0"]
CHANGING: list[dict[str, Any]] = [
    {"type": "edit", "set": {"attributes.to": "body"}},
    {"type": "edit", "set": {"attributes.password": "body", "attributes.user.id": "'u-7'"}},
    {"type": "edit", "set": {"body": "attributes.a"}, "remove": ["attributes.a"]},
    {"type": "edit", "set": {"severity_number": "int(attributes.n)"}},
    {"type": "edit", "set": {"attributes.made": "'ann@' + 'example.com'"}},
    {"type": "parse", "format": "logfmt"},
    {"type": "filter", "where": "attributes.n < 9"},
    {"type": "explode", "field": "attributes.list"},
]
GIVEN = st.lists(
    st.builds(
        lambda body, attributes, more: log(body, attributes=attributes, **more),
        st.sampled_from(SENSITIVE),
        st.dictionaries(
            st.sampled_from(["a", "b", "n", "list", "email", "session.id"]),
            st.sampled_from([*SENSITIVE, 1, 9, 25, 0.5, True, None, [*SENSITIVE], [1, 2]]),
            max_size=3,
        ),
        st.sampled_from([{}, {}, {"context": {"user.id": "u-1"}}, {"newer": "bob@example.com"},
                         {"resource": {"service.name": "cart"}}]),
    )
    | st.sampled_from([b"{", log()[:-1] + b" }", HUGE]),
    max_size=12,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(CHANGING), min_size=1, max_size=3), GIVEN)
def test_what_transforms_changed_is_redacted_as_a_whole_would_be(
    sections: list[dict[str, Any]], lines: list[bytes]
) -> None:
    names = ["app", *(f"t{number}" for number in range(len(sections)))]
    transforms = {
        name: {**section, "inputs": [before]}
        for before, name, section in zip(names, names[1:], sections, strict=False)
    }
    keys: dict[str, Any] = {"transforms": transforms}
    as_they_are = process(graph_of({**keys, "sensitive": {"enabled": False}}), *lines)
    outcome = process(graph_of(keys), *lines)
    scrubber, scrubbed = Scrubber(), 0
    for key, batch in as_they_are.batches.items():
        taken = dict(zip(outcome.batches[key].sequences, outcome.batches[key].lines, strict=True))
        for sequence, line in zip(batch.sequences, batch.lines, strict=True):
            try:
                expected = scrubber.scrub_line(line)
            except TypeError:  # it holds HUGE's integer
                assert sequence not in taken
                continue
            scrubbed += expected is not line
            assert taken.pop(sequence) == expected
            assert isinstance(check_line(expected), Accepted)
        assert not taken
    assert scrubbed == outcome.scrubbed
    assert outcome.found == scrubber.found | Counter({"without_key": scrubber.keyless.total()})
    quarantined = [one for one in outcome.refused if one.reason != "integer_too_large"]
    assert quarantined == as_they_are.refused


def test_refusals_are_in_the_order_of_the_records_whoever_refuses() -> None:
    """What the graph refuses behind the transforms comes where its record does."""
    wrong = {"type": "edit", "inputs": ["app"], "set": {"severity_number": "99"}}
    strict = {"type": "parse", "inputs": ["app"], "format": "json", "on_failure": "quarantine"}
    graph = graph_of({"transforms": {"wrong": wrong, "strict": strict}})
    outcome = process(graph, log(), b"{", log("{}"))
    assert [(one.sequence, one.reason.partition(": ")[0]) for one in outcome.refused] == [
        (1, "transform wrong"), (1, "transform strict"), (2, "not_json"), (3, "transform wrong"),
    ]  # fmt: skip


def test_records_of_which_transforms_make_many_are_all_taken_in_order() -> None:
    explode = {"type": "explode", "inputs": ["app"], "field": "attributes.list"}
    numbers = [f"{number}" for number in range(60)]
    given = log("x" * 4000, attributes={"list": [*numbers, "ann@example.com"]})
    outcome = process(graph_of({"transforms": {"it": explode}}), *[given] * 20)
    assert outcome.scrubbed == 20
    taken: dict[int, list[str]] = {}
    for (_, branch), batch in outcome.batches.items():
        assert batch.sequences == [*range(1, 21)]
        taken[branch] = [orjson.loads(line)["attributes"]["list"] for line in batch.lines]
    assert taken == {n: [one] * 20 for n, one in enumerate([*numbers, "[redacted:pii]"])}


def test_verdicts_that_are_known_of_some_lines_hold_for_these() -> None:
    graph = graph_of({})
    whole = log(resource={"service.name": "cart"})
    verdict = check_line(whole)
    assert isinstance(verdict, Accepted)
    for lines, verdicts in (([whole, log()], [verdict, None]), ([whole, whole], [verdict] * 2)):
        chunk = Chunk("app", 0, [1, 2], lines, RESOURCE, 5, verdicts)
        outcome = graph.process(chunk, 0)
        assert total(outcome) == 2
        assert not outcome.refused
