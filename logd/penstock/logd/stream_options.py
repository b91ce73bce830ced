"""The options of a stream as configuration files and requests say them, and a walk over them.

A request has all keys at one level.

The models have the fields of the dataclasses that declare the options, with their bounds: no option
stands here a second time.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Struct
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from penstock.logd.errors import RefusedError
from penstock.logd.format.subjects import check_stream_subject
from penstock.logd.limits import PARTITIONS_PER_STREAM_MAX, REPLICAS_MAX
from penstock.logd.metadata.option import Change, Option
from penstock.logd.metadata.records import ReplicationOptions
from penstock.logd.metadata.retention_policy import Retention
from penstock.logd.metadata.streams import StreamConfig, check_stream_name
from penstock.service import Quantities

Model = TypeVar("Model", bound=BaseModel)


def declared_by(
    declaration: type, **others: tuple[Any, Any]
) -> Callable[[type[Model]], type[Model]]:
    """Give a model the fields of a dataclass that it does not have itself.

    Args:
        declaration: The dataclass.
        others: Types and defaults of fields for which the model has other ones.
    """

    def decorate(model: type[Model]) -> type[Model]:
        hints = get_type_hints(declaration, include_extras=True)
        missing: dict[str, Any] = {
            field.name: others.get(field.name, (hints[field.name], _default(field.default)))
            for field in fields(declaration)
            if field.name not in model.model_fields
        }
        return create_model(
            model.__name__,
            __base__=model,
            __doc__=model.__doc__,
            __module__=model.__module__,
            **missing,
        )

    return decorate


def _default(value: Any) -> Any:
    return ... if value is MISSING else value


class _Settings(Quantities):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


@declared_by(Retention)
class RetentionSettings(_Settings):
    """Retention of a stream, as in `penstock.logd.metadata.retention_policy.Retention`."""


@declared_by(StreamConfig, retention=(RetentionSettings, RetentionSettings()))
class StreamSettings(_Settings):
    """One stream; the attributes are those of `penstock.logd.metadata.streams.StreamConfig`."""

    name: Annotated[str, Option("1 to 64 of `A-Z a-z 0-9 _ -`.", change=Change.CREATE)]
    subject: Annotated[
        str,
        Option(
            "Filter with `*` and `>`; one that begins with a wildcard needs `ack_on_reply: false`.",
            change=Change.CREATE,
        ),
    ]

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        try:
            check_stream_name(name)
        except RefusedError as error:
            raise ValueError(str(error)) from None
        return name

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, subject: str) -> str:
        try:
            check_stream_subject(subject, ack_on_reply=False)
        except RefusedError as error:
            raise ValueError(str(error)) from None
        return subject

    @field_validator("ack_on_reply", check_fields=False)
    @classmethod
    def _check_acks(cls, ack_on_reply: bool, info: ValidationInfo) -> bool:
        if "subject" in info.data:  # else that is what is wrong
            try:
                check_stream_subject(info.data["subject"], ack_on_reply=ack_on_reply)
            except RefusedError as error:
                raise ValueError(str(error)) from None
        return ack_on_reply

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        config = self.stream_config()
        limits = (config.retention.bytes, config.retention.messages)
        if config.discard == "new" and limits == (None, None):
            msg = "discard: new needs retention.bytes or retention.messages"
            raise ValueError(msg)
        begun, ends = config.restore_from, config.restore_upto
        if len(begun) != len(ends) or any(map(operator.gt, begun, ends)):
            msg = "restore_from and restore_upto: as many offsets, none after its partition's end"
            raise ValueError(msg)
        return self

    def stream_config(self) -> StreamConfig:
        """The stream as the core knows it."""
        options = self.model_dump(include=set(StreamSettings.model_fields))
        return StreamConfig(**options | {"retention": Retention(**options["retention"])})


@declared_by(ReplicationOptions)
class ReplicationSettings(BaseModel):
    """Replication of a stream; the attributes are those of `ReplicationOptions`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partitions: Annotated[
        int,
        Field(ge=1, le=PARTITIONS_PER_STREAM_MAX),
        Option(
            "Partition 0 is on the stream's subject, n on `subject.n`; cannot be changed.",
            change=Change.CREATE,
            liftbridge="partitions",
        ),
    ] = 1
    replication_factor: Annotated[
        Annotated[int, Field(ge=1, le=REPLICAS_MAX)] | Literal["all"] | None,
        Option(
            "Replicas of each partition; `all`: one on every node. Without it: 3, or as many as"
            " there are nodes.",
            liftbridge="replicationFactor",
        ),
    ] = None

    def replication(self) -> "ReplicationSettings":
        """Return the replication part of a configured stream."""
        return ReplicationSettings.model_construct(
            **{name: getattr(self, name) for name in ReplicationSettings.model_fields}
        )

    def options(self, *, factor: int) -> ReplicationOptions:
        """Return the form of the cluster's state; `factor` is the default replication factor."""
        wanted = self.replication_factor
        chosen = self.model_dump(exclude={"partitions", "replication_factor"})
        count = factor if wanted is None else 0 if wanted == "all" else wanted
        return ReplicationOptions(replication_factor=count, **chosen)


class ConfiguredStream(StreamSettings, ReplicationSettings):
    """A stream of the configuration file: what it is, and how it is replicated."""


class StreamOption(Struct, frozen=True, kw_only=True):
    """An option as the interfaces have it.

    Attributes:
        name: Its key; of what is below another key, both with a dot between.
        kind: The type of its values; the first, where there are several.
        choices: The words there are for a value.
        least: The least value; None: there is none.
        most: The greatest value.
        required: Whether it has no default.
        default: None: none.
        replication: Whether it says how a stream is replicated.
        option: Meaning of the option, and the commands that set it.
    """

    name: str
    kind: Any
    choices: tuple[str, ...]
    least: int | None
    most: int | None
    required: bool
    default: Any
    replication: bool
    option: Option

    @property
    def parameter(self) -> str:
        """Name on a command line, without the hyphens: `retention-age-s`."""
        return self.name.replace(".", "-").replace("_", "-")


def stream_options() -> Iterator[StreamOption]:
    """Every option there is, in the order in which they are declared."""
    yield from _walk(StreamSettings, replication=False)
    yield from _walk(ReplicationSettings, replication=True)


def _walk(model: type[BaseModel], prefix: str = "", *, replication: bool) -> Iterator[StreamOption]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.", replication=replication)
            continue
        kinds = [_plain(one) for one in (get_args(kind) if _is_union(kind) else (kind,))]
        yield StreamOption(
            name=prefix + name,
            kind=kinds[0],
            choices=tuple(one for kind in kinds for one in _choices(kind)),
            least=_bound(field, "ge"),
            most=_bound(field, "le"),
            required=field.is_required(),
            default=None if field.is_required() else field.default,
            replication=replication,
            option=next(one for one in field.metadata if isinstance(one, Option)),
        )


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _choices(kind: Any) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _bound(field: FieldInfo, name: str) -> int | None:
    return next((getattr(one, name) for one in field.metadata if hasattr(one, name)), None)


_FIXED: Final = tuple(
    option.name
    for option in stream_options()
    if option.option.change in (Change.CREATE, Change.RESTORE) and option.name != "restore_upto"
)


def parse(model: type[Model], document: Mapping[str, Any]) -> Model:
    """A request, or a part of one.

    Raises:
        RefusedError: `BAD_REQUEST` with the `key` that is wrong first.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "request"
        reason = first["msg"].removeprefix("Value error, ")
        if reason.startswith("Input should "):
            reason = f"must {reason.removeprefix('Input should ')}"
        raise RefusedError("BAD_REQUEST", f"{key}: {reason}", key=key) from None


def split_settings(document: Mapping[str, Any]) -> tuple[StreamConfig, ReplicationSettings]:
    """Split a document into a stream's configuration and its replication.

    Raises:
        RefusedError: The same as in `parse`.
    """
    known = ReplicationSettings.model_fields
    plain = {key: value for key, value in document.items() if key not in known}
    replication = {key: value for key, value in document.items() if key in known}
    settings = parse(StreamSettings, plain)
    return settings.stream_config(), parse(ReplicationSettings, replication)


def altered(
    config: StreamConfig, options: ReplicationOptions, changes: Mapping[str, Any]
) -> tuple[StreamConfig, ReplicationOptions]:
    """A stream with some options changed; of `retention`, the limits that are named.

    Raises:
        RefusedError: `BAD_REQUEST` with the `key`: there is no such option, it cannot be changed,
            or its value is none.
    """
    for key in _FIXED:
        if key in changes:
            raise RefusedError("BAD_REQUEST", f"{key}: it cannot be changed", key=key)
    wanted: dict[str, Any] = asdict(config) | asdict(options) | dict(changes)
    if "restore_upto" in changes:
        wanted["restore_upto"] = _end_of_restore(config, changes["restore_upto"])
    if isinstance(changes.get("retention"), dict):
        wanted["retention"] = asdict(config.retention) | changes["retention"]
    if "replication_factor" not in changes:
        wanted["replication_factor"] = options.replication_factor or "all"
    if changes.keys() <= ReplicationSettings.model_fields.keys():
        known = {key: wanted[key] for key in ReplicationSettings.model_fields if key in wanted}
        changed, replication = config, parse(ReplicationSettings, known)
    else:
        changed, replication = split_settings(wanted)
    return changed, replication.options(factor=options.replication_factor)


def _end_of_restore(config: StreamConfig, wanted: object) -> tuple[int, ...]:
    """Return the option that ends a restore: no more of the backup follows.

    Raises:
        RefusedError: `BAD_REQUEST`: anything else is wanted, or it is not restored.
    """
    key = "restore_upto"
    if wanted is not None or not config.restore_from:
        message = f"{key}: it can only be ended, with null, of a stream that was made of a backup"
        raise RefusedError("BAD_REQUEST", message, key=key)
    return config.restore_from
