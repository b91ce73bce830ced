"""`penstock collector sources` shows what the models hold."""

from penstock.collector.cli.main import describe_sources
from penstock.collector.sources.sections import SOURCE_TYPES


def test_every_source_and_every_option_is_listed() -> None:
    lines = list(describe_sources())
    for model in SOURCE_TYPES:
        kind = model.model_fields["type"].annotation.__args__[0]  # type: ignore[union-attr]
        (first,) = (at for at, line in enumerate(lines) if line.startswith(f"{kind}: "))
        rest = lines[first + 1 :]
        own = rest[: next((n for n, line in enumerate(rest) if line[0] != " "), len(rest))]
        listed = {line.split()[0] for line in own}
        assert set(model.model_fields) - {"type"} <= listed


def test_types_bounds_and_defaults_are_shown() -> None:
    text = "\n".join(" ".join(line.split()) for line in describe_sources())
    assert "max_line_bytes integer 64..32768 default 32768" in text
    assert "start beginning or end default beginning" in text
    assert "tls.cert_file string required PEM:" in text
    assert "mode integer 0..0777 default 0660" in text
    assert "include list required" in text
