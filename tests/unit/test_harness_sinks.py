"""What a sink holds is known by its number only if it is as it was published."""

from tests.harness.systems.router_sinks import line_of, number_in, number_of


def test_a_record_is_known_by_its_number_only_if_it_is_whole() -> None:
    assert number_of(line_of(77)) == 77
    assert number_of(line_of(77) + b" ") is None
    assert number_of(line_of(77).replace(b"checkout", b"x").replace(b"INFO", b"WARN")) is None
    assert [number_of(it) for it in (None, b"", b"{}")] == [None] * 3
    assert number_in("order 12 ☃") == 12
    assert [number_in(it) for it in (None, "", "order x ☃", "order 12")] == [None] * 4
