"""Every bound of the specs and of the emitter, with its unit and origin.

*Soft* bounds are the emitter's: it cuts and says so in ``dropped_attributes_count``. *Hard* bounds
are the validator's: a record beyond them is refused.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
"""Integers on the wire are int64, as in OTLP and Arrow."""

RECORD_BYTES_MAX: Final = 256 * KIB
"""Hard. One record's line; Google Cloud Logging's entry limit."""

RECORD_BYTES_SOFT: Final = 64 * KIB
"""Soft. What CloudEvents asks every intermediary to accept."""

STRING_CHARACTERS_MAX: Final = 32 * KIB
"""Hard. One string; Elasticsearch's longest indexed term is 32,766 bytes."""

STRING_CHARACTERS_SOFT: Final = 8 * KIB
"""Soft. One string that is not a stack trace."""

ATTRIBUTES_MAX: Final = 128
"""Attributes of one record; OpenTelemetry's default attribute count limit."""

KEY_CHARACTERS_MAX: Final = 128
"""One attribute's key."""

LIST_ITEMS_MAX: Final = 1024
"""Items of a list-valued attribute."""

DEPTH_MAX: Final = 8
"""Objects and lists inside each other in one line. The models need 5 (a span's link attributes
with list values); what lies deeper can only be a field this version does not know."""

ATTRIBUTE_DEPTH_SOFT: Final = 4
"""Soft. Nested mappings given as an attribute are laid out flat down to this depth."""

SCHEMA_CHARACTERS_MAX: Final = 96
SCOPE_CHARACTERS_MAX: Final = 255
NAME_CHARACTERS_MAX: Final = 255
TRACE_STATE_CHARACTERS_MAX: Final = 512
"""W3C Trace Context asks for at least 512 characters of tracestate to be propagated."""

LINKS_MAX: Final = 128
SPAN_EVENTS_MAX: Final = 128
"""OpenTelemetry's default link and event count limits."""

EXEMPLARS_MAX: Final = 4
BUCKETS_MAX: Final = 160
"""OpenTelemetry's default exponential histogram size."""

EXPLICIT_BOUNDS_MAX: Final = 512

EXCEPTION_FRAMES_MAX: Final = 32
EXCEPTION_CAUSES_MAX: Final = 8
EXCEPTION_MEMBERS_MAX: Final = 16
"""Members of exception groups that are looked at, those of groups within groups included."""

IDENTITY_CHARACTERS_MAX: Final = 255
"""An identifying attribute of a resource."""

RESOURCE_BYTES_SOFT: Final = 8 * KIB
"""Soft. A resource's other attributes; escaped sixfold they still fit a batch's header, 64 KiB."""

HASH_KEY_ID_CHARACTERS_MAX: Final = 16
HASH_KEY_BYTES_MIN: Final = 16
"""Length of the key for pseudonyms; 128 bits cannot be searched."""

HASHED_CHARACTERS_MAX: Final = 64
"""A hashed value: its key's id, the rotation's period and 32 hex digits take 58 at most."""

DIMENSION_CARDINALITY_MAX: Final = 1_000
"""Values that one dimension of a metric may declare; OpenTelemetry's SDK folds a metric's series
beyond 2,000 into one."""

SUBJECT_TOKEN_CHARACTERS_MAX: Final = 64

QUEUE_RECORDS_MAX: Final = 10_000
QUEUE_BYTES_MAX: Final = 8 * MIB
"""Bytes that an emitter holds before it drops: two to ten seconds of a busy application."""

BATCH_RECORDS_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 512 * KIB
BATCH_AGE_MS: Final = 100
"""A batch is sent when it reaches any of these."""

ACK_TIMEOUT_MS: Final = 30_000
"""A collector that is silent for so long is reconnected to."""

BACKOFF_MIN_MS: Final = 100
BACKOFF_MAX_MS: Final = 5_000
"""Between attempts to connect; the real wait is between half of it and all of it."""

EXIT_FLUSH_MS: Final = 2_000
"""Maximum milliseconds that an ending process waits for its last records."""

REPEATS_MAX: Final = 100
"""Equal log records of one second that are not folded; a loop that fails makes thousands."""

SPILL_BYTES_MAX: Final = 16 * MIB
"""Audit records that wait in a file; some 30,000."""

AUDIT_SYNC_MS: Final = 200
"""Audit records that wait for the collector for longer are brought to the disk; most need not be:
they are acknowledged after a batch's age and the collector's own sync."""

SPILL_FILES_ADOPTED_MAX: Final = 8
"""Files of processes that died, delivered by one that lives at a time."""
