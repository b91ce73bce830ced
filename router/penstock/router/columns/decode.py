"""Records as JSON text, decoded to columns of Arrow a batch at a time.

Each value is decoded by msgspec into an object that has just the fields which are wanted; what is
not wanted is skipped as text. Only rows that are not as the specs say are looked at one by one:
they are kept, their fields NULL where they cannot be told, and `malformed_reason` says why.

The objects that records are decoded into: with slots for the keys that records turn out to have.

A view of all kinds wants some eighty keys, and a record has eight. Objects with all eighty slots
are slow to make and to look through. So where many keys are wanted, the objects for most records
have slots for the keys that were met so far, wanted or not, and refuse records with others, each of
which is then decoded whole, and its keys are met from there on. Any object can be asked for every
slot.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa

from penstock.base.lazy_module import LazyModule
from penstock.router.columns.spec_versions import SpecVersions

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")  # who plans batches has no rows to compute with

NULL_TEXT: Final = b"null"
NULL: Final = msgspec.Raw(NULL_TEXT)
"""Value of an absent key that is kept as JSON."""

FEW: Final = 16
"""Wanted keys up to which it is no gain to know which of them are met."""

MET_MAX: Final = 256
"""Keys for which there are slots, wanted or not. Records that have more are decoded whole."""

_keys_of: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RowTypes:
    """Types of the rows of one decoder.

    Args:
        slots: The attribute for each wanted key.
        types: Type of each wanted key; `msgspec.Raw` keeps its JSON.

    Attributes:
        whole: Type with a slot for each wanted key.
        decode: Decodes a record, with the keys that were met; raises what msgspec does.
        present: The wanted keys that some record may have had; no record had another one.
    """

    def __init__(self, slots: Mapping[str, str], types: Mapping[str, Any]) -> None:
        self._slots = slots
        self._types = types
        self._met: set[str] = set()
        self.present: set[str] = set()
        self.whole = self._type_for("Row", slots)
        self._decode_whole = msgspec.json.Decoder(self.whole).decode
        if len(slots) > FEW:
            self._meet(())
        else:
            self._take_all()

    def decode_unmet(self, text: bytes | None) -> Any:
        """Decode a record that `decode` refuses; from now on it takes others with the same keys.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError: It is not as wanted.
        """
        row = self._decode_whole(text)  # type: ignore[arg-type] # None is a TypeError
        self._meet(_keys_of(text))  # type: ignore[arg-type]
        return row

    def note(self, keys: Iterable[str]) -> None:
        """A row that is made otherwise has these keys."""
        self.present.update(self._slots.keys() & keys)

    def _meet(self, keys: Iterable[str]) -> None:
        self._met.update(keys)
        if len(self._met) > MET_MAX or not all(map(_can_be_named, self._met)):
            self._take_all()
            return
        self.note(keys)
        self.decode = msgspec.json.Decoder(self._narrow()).decode

    def _take_all(self) -> None:
        self.present.update(self._slots)
        self.decode = self._decode_whole

    def _narrow(self) -> Any:
        """Return a type with slots for the keys that were met; other keys read as absent."""
        slots = {key: self._slots.get(key, f"other{at}") for at, key in enumerate(self._met)}
        absent = {
            slot: _default(self._types[key])
            for key, slot in self._slots.items()
            if key not in self._met
        }
        return self._type_for("NarrowRow", slots, absent)

    def _type_for(
        self, name: str, slots: Mapping[str, str], absent: Mapping[str, Any] | None = None
    ) -> Any:
        types = {key: self._types.get(key, msgspec.Raw) for key in slots}
        return msgspec.defstruct(
            name,
            [(slot, types[key], _default(types[key])) for key, slot in slots.items()],
            namespace={"problem": None, **(absent or {})},
            rename={slot: key for key, slot in slots.items()},
            forbid_unknown_fields=absent is not None,
            gc=False,
            eq=False,
        )


def _default(kind: Any) -> Any:
    return NULL if kind is msgspec.Raw else None


def _can_be_named(key: str) -> bool:
    """Return whether msgspec accepts a key as the name of a field."""
    return '"' not in key and "\\" not in key and all(it >= " " for it in key)


_BLANK: Final = r"[ \t\r\n]"


def _decoded(texts: list[bytes]) -> list[dict[str, msgspec.Raw]]:
    """Return the JSON objects; empty where a text is none."""
    left = iter(texts)
    found: list[dict[str, msgspec.Raw]] = []
    while len(found) < len(texts):
        try:
            found.extend(map(_keys_of, left))  # as in `Decoder.decode`
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found.append({})
    return found


def maps(texts: pa.Array) -> pa.Array:
    """JSON objects as maps of text; a nested value is its JSON."""
    found = _decoded(texts.to_pylist())
    offsets: list[int | None] = list(accumulate(map(len, found), initial=0))
    for absent in pc.indices_nonzero(pc.invert(pc.starts_with(texts, b"{"))).to_pylist():
        offsets[absent] = None
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(list(chain.from_iterable(found)), pa.string()),
        _plain_texts(_texts_of(list(chain.from_iterable(map(dict.values, found))))),
    )


def _texts_of(raws: Sequence[msgspec.Raw]) -> pa.Array:
    """Return the JSON of values as a column of bytes, without an object of Python for each."""
    offsets = pa.array(accumulate(map(len, raws), initial=0), pa.int32())
    buffers = [None, offsets.buffers()[1], pa.py_buffer(b"".join(raws))]
    return pa.Array.from_buffers(pa.binary(), len(raws), buffers)


def _plain_texts(texts: pa.Array) -> pa.Array:
    """JSON values as text: strings without their quotes, null as null."""
    is_string = pc.starts_with(texts, b'"')
    plain = pc.if_else(is_string, pc.binary_slice(texts, 1, -1), texts)
    plain = pc.if_else(pc.equal(texts, NULL_TEXT), None, plain)
    escaped = pc.and_(is_string, pc.match_substring(texts, b"\\"))
    plain = _replaced(plain, escaped, texts, lambda text: msgspec.json.decode(text).encode())
    return compact(plain, pc.invert(is_string)).cast(pa.string())


def compact(texts: pa.Array, is_json: pa.Array) -> pa.Array:
    """Lists and objects without blanks, as Spark's own functions write them."""
    is_nested = pc.or_(pc.starts_with(texts, b"{"), pc.starts_with(texts, b"["))
    is_nested = pc.and_(is_json, is_nested)
    if not pc.any(is_nested, min_count=0).as_py():
        return texts
    loose = pc.and_(is_nested, pc.match_substring_regex(texts, _BLANK))
    return _replaced(texts, loose, texts, _without_blanks)


def _without_blanks(text: bytes) -> bytes:
    """Return the JSON without blanks; unchanged where it is nested too deeply."""
    try:
        return msgspec.json.format(text, indent=-1)
    except RecursionError:
        return text


def _replaced(
    values: pa.Array, mask: pa.Array, texts: pa.Array, make: Callable[[bytes], bytes]
) -> pa.Array:
    """Values of which some are made of texts one by one: those that are rare."""
    mask = pc.fill_null(mask, fill_value=False)
    if not pc.any(mask, min_count=0).as_py():
        return values
    made = [make(text) for text in texts.filter(mask).to_pylist()]
    return pc.replace_with_mask(values, mask, pa.array(made, pa.binary()))


_NOT_JSON: Final = "not a JSON object"
_NO_VALUE: Final = "no value"
_REASON_LENGTH_MAX: Final = 200
_NOT_AS_WANTED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)

_MAP: Final = "map<string,string>"
_Text = str | None
_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_DOUBLE: Final = float | None
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""Texts that stand in a record for numbers that JSON cannot express."""
_Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_PYTHON: Final[Mapping[str, Any]] = {
    "string": _Text,
    "long": _Long | None,
    "int": _Int | None,
    "double": _DOUBLE,
    "boolean": bool | None,
    "array<long>": list[_Long | None] | None,
    "array<double>": list[float | None] | None,
    "array<string>": list[_Text] | None,
    "array<boolean>": list[bool | None] | None,
    "json": msgspec.Raw,
    _MAP: msgspec.Raw,
}

ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "json": pa.string(),
    _MAP: pa.map_(pa.string(), pa.string()),
    **{
        f"array<{name}>": pa.list_(pa.field("element", kind))
        for name, kind in (
            ("long", pa.int64()),
            ("double", pa.float64()),
            ("string", pa.string()),
            ("boolean", pa.bool_()),
        )
    },
}


@dataclass(frozen=True, slots=True)
class JsonField:
    """A column that comes of a record's JSON.

    Attributes:
        name: Name of the column.
        neutral: Its type, as `penstock.specs.formats.schemas` names it.
        path: Keys from the record's root to the value, one or two.
    """

    name: str
    neutral: str
    path: tuple[str, ...]


SCHEMA_FIELD: Final = JsonField("schema", "string", ("schema",))
KIND_FIELD: Final = JsonField("kind", "string", ("kind",))


class Decoder:
    """Decodes records.

    Args:
        fields: The columns that will be asked for; `schema` and `kind` always can be.
        kinds: Kinds of the specs; a record of another is malformed.
        versions: Known versions of the specs.
        strict: Whether `problems` will be asked for, so that every field has to be looked at.
        only_checked: Names of fields that are looked at for that alone.
    """

    def __init__(
        self,
        fields: Sequence[JsonField],
        kinds: Sequence[str],
        versions: SpecVersions,
        *,
        strict: bool,
        only_checked: Collection[str] = (),
    ) -> None:
        wanted = {field.name: field for field in (SCHEMA_FIELD, KIND_FIELD, *fields)}
        self._fields = wanted
        self._kinds = pa.array(kinds, pa.string())
        self._versions = versions
        self._objects = {f.path[0] for f in fields if f.neutral == _MAP or len(f.path) == 2}
        self._slots: dict[str, str] = {}
        self._nested: dict[str, Any] = {}
        types: dict[str, Any] = {}
        keys = {key: [f for f in wanted.values() if f.path[0] == key] for key in _keys(wanted)}
        for number, (key, of_key) in enumerate(keys.items()):
            slot = f"f{number}"
            needed = [field for field in of_key if field.name not in only_checked]
            types[slot], nested = _slot_type(needed or of_key, is_needed=bool(needed))
            self._slots[key] = slot
            if nested is not None:
                self._nested[key] = nested
        self._types = {key: types[slot] for key, slot in self._slots.items()}
        raw = {key for key, kind in self._types.items() if kind is msgspec.Raw}
        self._maps = sorted(self._objects & raw) if strict else []
        self._row_types = RowTypes(self._slots, self._types)
        self._odd_row = msgspec.defstruct(
            "OddRow",
            [("problem", _Text, None)],
            bases=(self._row_types.whole,),
            gc=False,
            eq=False,
        )

    def decode(self, values: pa.Array) -> "Rows":
        """Decode the records of a column of bytes."""
        texts = values.to_pylist()
        left = iter(texts)
        rows: list[Any] = []
        while len(rows) < len(texts):
            try:
                # One loop in C. What it got before a record that cannot be decoded is kept.
                rows.extend(map(self._row_types.decode, left))
            except _NOT_AS_WANTED:
                rows.append(self._unmet(texts[len(rows)]))
        for at in _not_utf8(values):
            rows[at] = self._odd_row(problem=_NOT_JSON)
        present = self._row_types.present
        return self._checked(Rows(rows, self._fields, self._slots, self._nested, present), texts)

    def _checked(self, rows: "Rows", texts: list[bytes | None]) -> "Rows":
        """Mark what is no record, and bring records of older major versions to the newest."""
        schemas = rows.column("schema").dictionary_encode()
        verdicts = list(map(self._versions.verdict, schemas.dictionary.to_pylist()))
        others = pa.array([verdict is not None for verdict in verdicts], pa.bool_())
        if pc.any(others).as_py():
            is_other = pc.fill_null(others.take(schemas.indices), fill_value=False)
            for at in pc.indices_nonzero(is_other).to_pylist():
                text, verdict = texts[at], verdicts[schemas.indices[at].as_py()]
                if rows.rows[at].problem is None and text is not None:
                    rows.put(at, self._of_other_version(text, verdict))
        for key in self._maps:
            texts_of = rows.texts(key)
            is_map = pc.or_(pc.starts_with(texts_of, b"{"), pc.equal(texts_of, NULL_TEXT))
            for at in pc.indices_nonzero(pc.invert(is_map)).to_pylist():
                if rows.rows[at].problem is None:
                    problem = f"{key}: not an object"
                    rows.put(at, self._with_problem(rows.rows[at], problem))
        known = pc.fill_null(pc.is_in(rows.column("kind"), value_set=self._kinds), fill_value=False)
        for at in pc.indices_nonzero(pc.invert(known)).to_pylist():
            row = rows.rows[at]
            if row.problem is None:
                kind = getattr(row, self._slots["kind"])
                problem = "no kind" if kind is None else f"no such kind: {kind!r}"
                rows.put(at, self._with_problem(row, problem))
        return rows

    def _of_other_version(self, text: bytes, problem: str | None) -> Any:
        """A record whose major version is not the newest known one."""
        document = _document(text)
        if document is None:
            return self._odd_row(problem=_NOT_JSON)
        if not problem:
            try:
                return self._of_document(self._versions.newest(document), None)
            except ValueError as error:
                problem = str(error)
        return self._of_document(document, problem)

    def _unmet(self, text: bytes | None) -> Any:
        """A row of what is not like the records before it."""
        try:
            return self._row_types.decode_unmet(text)
        except _NOT_AS_WANTED:
            return self._odd(text)

    def _odd(self, text: bytes | None) -> Any:
        """A row of what cannot be decoded as it should be."""
        if text is None:
            return self._odd_row(problem=_NO_VALUE)
        document = _document(text)
        if document is None:
            return self._odd_row(problem=_NOT_JSON)
        return self._of_document(document, None)

    def _of_document(self, document: dict[str, Any], problem: str | None) -> Any:
        """A row of a record, each field by itself; `problem` when there is one already."""
        found: dict[str, Any] = {}
        self._row_types.note(document)
        for key, slot in self._slots.items():
            kind, value = self._types[key], document.get(key)
            if key in self._objects and not isinstance(value, dict | None):
                problem = problem or f"{key}: not an object"
                value = None
            if kind is msgspec.Raw:
                found[slot] = msgspec.Raw(msgspec.json.encode(value))
                continue
            if kind is _DOUBLE and value in _NOT_FINITE:
                value = float(value)
            try:
                found[slot] = msgspec.convert(_as_text(value) if kind is _Text else value, kind)
            except msgspec.ValidationError as error:
                if key in self._nested and isinstance(value, dict):
                    texts = {name: _as_text(inner) for name, inner in value.items()}
                    found[slot] = msgspec.convert(texts, kind)
                    continue
                problem = problem or f"{key}: {error}"
        return self._row_types.whole(**found) if problem is None else self._marked(found, problem)

    def _with_problem(self, row: Any, problem: str) -> Any:
        return self._marked({slot: getattr(row, slot) for slot in self._slots.values()}, problem)

    def _marked(self, found: dict[str, Any], problem: str) -> Any:
        return self._odd_row(**found, problem=problem[:_REASON_LENGTH_MAX])


class Rows:
    """Decoded records, of which columns can be made.

    Most fields of most kinds are absent from a whole batch; that costs next to nothing. What
    several columns are made of is made once.

    Attributes:
        rows: One object each; changed by `put` alone.
        present: Keys that some row may have; grows while rows are `put`.
    """

    def __init__(
        self,
        rows: list[Any],
        fields: Mapping[str, JsonField],
        slots: Mapping[str, str],
        nested: Mapping[str, Any],
        present: Collection[str],
    ) -> None:
        self.rows = rows
        self.present = present
        self._fields = fields
        self._slots = slots
        self._nested = nested
        self._known: dict[str, list[Any]] = {}
        self._texts: dict[str, pa.Array] = {}
        self._maps: dict[str, tuple[pa.Array, pa.Array]] = {}

    def put(self, at: int, row: Any) -> None:
        """Have another row in a place."""
        self.rows[at] = row
        for made in (self._known, self._texts, self._maps):
            made.clear()

    def filter(self, mask: pa.Array) -> "Rows":
        """The rows for which a mask is true."""
        kept = list(compress(self.rows, mask.to_pylist()))
        return Rows(kept, self._fields, self._slots, self._nested, self.present)

    def problems(self) -> pa.Array:
        """Why a row is malformed; null where it is not."""
        return pa.array(list(map(attrgetter("problem"), self.rows)), pa.string())

    def texts(self, key: str) -> pa.Array:
        """The JSON of a key whose value is kept as such."""
        if key not in self._texts:
            self._texts[key] = _texts_of(self._values(key))
        return self._texts[key]

    def column(self, name: str) -> pa.Array:
        """A column of the decoder's fields."""
        field = self._fields[name]
        key = field.path[0]
        if self._is_absent(key):
            inner_kind = pa.string() if len(field.path) == 2 else ARROW_TYPES[field.neutral]
            return pa.nulls(len(self.rows), inner_kind)
        if key in self._nested:
            nothing = self._nested[key]
            inner = attrgetter(_slot_of(field.path[1]))
            values = [nothing if value is None else value for value in self._values(key)]
            return pa.array(list(map(inner, values)), pa.string())
        if len(field.path) == 2 or field.neutral == _MAP:
            found, indices = self._maps_of(key)
            if len(field.path) == 2:
                found = pc.map_lookup(found, field.path[1], "first")
            # Where all are different, they are in the order of the rows already.
            return found if len(found) == len(indices) else found.take(indices)
        if field.neutral == "json":
            texts = self.texts(key)
            texts = pc.if_else(pc.equal(texts, NULL_TEXT), None, texts)
            return compact(texts, pc.is_valid(texts)).cast(pa.string())
        return pa.array(self._values(key), ARROW_TYPES[field.neutral])

    def _maps_of(self, key: str) -> tuple[pa.Array, pa.Array]:
        """The different maps of a key, and which of them each row has."""
        if key not in self._maps:
            raws = self.texts(key).dictionary_encode()
            self._maps[key] = maps(raws.dictionary), raws.indices
        return self._maps[key]

    def _is_absent(self, key: str) -> bool:
        """Return whether no row has the key; a JSON null counts as present."""
        if key not in self.present:
            return True
        values = self._values(key)
        if not values or (values[0] is not None and values[0] is not NULL):
            return False
        return values.count(values[0]) == len(values)

    def _values(self, key: str) -> list[Any]:
        if key not in self._known:
            self._known[key] = list(map(attrgetter(self._slots[key]), self.rows))
        return self._known[key]


def _document(text: bytes) -> dict[str, Any] | None:
    """The whole of a JSON object; None where it is none, or none that can be held."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _not_utf8(values: pa.Array) -> Sequence[int]:
    """Return the indexes of texts that are not UTF-8; msgspec checks only what it decodes."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return [at for at, text in enumerate(values.to_pylist()) if not _is_utf8(text)]
    return ()


def _is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _keys(fields: Mapping[str, JsonField]) -> list[str]:
    return list(dict.fromkeys(field.path[0] for field in fields.values()))


def _slot_type(fields: Sequence[JsonField], *, is_needed: bool) -> tuple[Any, Any]:
    """Return the type that a key is decoded as, and an empty value of it if it has fields."""
    if not is_needed and any(field.neutral == _MAP for field in fields):
        return _OBJECT | None, None
    whole = [field for field in fields if len(field.path) == 1]
    if whole:
        return _PYTHON[whole[0].neutral], None
    inner = [field.path[1] for field in fields]
    kind = msgspec.defstruct(
        "Inner",
        [(_slot_of(name), _Text, None) for name in inner],
        rename={_slot_of(name): name for name in inner},
        gc=False,
        eq=False,
    )
    return kind | None, kind()


def _slot_of(key: str) -> str:
    return "i_" + "".join(char if char.isalnum() else "_" for char in key)


def _as_text(value: Any) -> str | None:
    """A value as a column of text has it: anything that is no text as its JSON."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


_OBJECT: Final = msgspec.defstruct("Object", [], gc=False, eq=False)
"""Any JSON object, of which nothing is kept."""
