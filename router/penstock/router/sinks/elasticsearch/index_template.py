"""The index template for documents of the Elasticsearch and OpenSearch sink.

Without it, the first document decides the type of each attribute: one that is a number here and a
text there, a number of 2^63 and `a` beside `a.b` are refused. Here `attributes`, `resource` and
`context` are each one field of the type `flattened` ("Flattened field type" in Elasticsearch's
reference), or `flat_object` ("Flat object field type" in OpenSearch's): values are keywords there.
Lists of objects are stored and not searched. A number that does not fit its field is stored and
not searched, too ("ignore_malformed").

A long text is stored and not searched in a `flattened` field ("ignore_above"). A `flat_object` has
no such parameter: OpenSearch's mapper (`FlatObjectFieldMapper`) indexes each text as it is and
behind its name (`attributes.NAME=text`), whatever its length, and a template that names
`ignore_above` there is refused. Lucene refuses a term above 32,766 bytes, and so the document. To
have the texts as keywords of an `object`, which may ignore them, would bring back a field for each
name, and refusals of `a` beside `a.b`. To shorten them would lose what they say: such records are
dead letters, and whole there.
"""

import re
from typing import Any, Final

from penstock.router.sinks.elasticsearch.sink import ElasticsearchSink

Json = dict[str, Any]

_STREAM: Final = re.compile(r"(logs|metrics|traces)-[^-<>]+-[^<>]+")
"""Names for which Elasticsearch makes data streams by itself; other names stay plain indices."""

_PRIORITY: Final = 200
"""Above that of Elasticsearch's own templates for `logs-*-*` and the like, which is 100."""

_KEYWORD_MAX: Final = 1024
"""Characters; longer texts are stored and not searched. Lucene refuses one above 32,766 bytes."""

_GROUPS: Final = ("attributes", "resource", "context")
_LISTS: Final = ("events", "links", "exemplars")
_NUMBERS: Final = ("value", "sum", "min", "max", "count")


def index_template(config: ElasticsearchSink, *, opensearch: bool) -> Json:
    """The body of `PUT _index_template/NAME` for a sink's indices."""
    flat: Json = {"type": "flat_object"}
    if not opensearch:
        flat = {"type": "flattened", "ignore_above": _KEYWORD_MAX}
    ours: Json = {
        **dict.fromkeys(_GROUPS, flat),
        **{name: {"type": "object", "enabled": False} for name in _LISTS},
        **{name: {"type": "double"} for name in _NUMBERS},
    }
    properties: Json = {"@timestamp": {"type": "date"}}
    if config.documents == "ecs":
        properties |= {"message": {"type": "text"}, "penstock": {"properties": ours}}
    else:
        properties |= {"body": {"type": "text"}, "message": {"type": "text"}, **ours}
    keyword = {"type": "keyword", "ignore_above": _KEYWORD_MAX}
    template: Json = {
        "index_patterns": [re.sub(r"\{[^{}]*(\{[^{}]*\})?\}", "*", config.index).strip("<>")],
        "priority": _PRIORITY,
        "template": {
            "settings": {"index.mapping.ignore_malformed": True},
            "mappings": {
                "date_detection": False,
                "dynamic_templates": [
                    {"texts": {"match_mapping_type": "string", "mapping": keyword}}
                ],
                "properties": properties,
            },
        },
    }
    if not opensearch and _STREAM.fullmatch(config.index):
        template["data_stream"] = {}
    return template
