"""The JSON Schema of an inventory (draft 2020-12), for editors. What only several places tell is for ``load``."""

from __future__ import annotations

from pydantic.json_schema import GenerateJsonSchema

from chaos.documents.schema import VARIABLE_DEFINITION, Schema, readable
from chaos.inventory.document import Document


def json_schema() -> Schema:
    """The schema of an inventory."""
    schema = Document.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs")
    # `node1:` with nothing behind it says nothing more of the node.
    for key in ("jumps", "groups", "nodes"):
        entry = schema["properties"][key]
        entry["additionalProperties"] = {"anyOf": [entry["additionalProperties"], {"type": "null"}]}
    schema["properties"]["nodes"]["minProperties"] = 1
    definitions = {name: readable(part) for name, part in definitions.items()}
    definitions["variable"] = VARIABLE_DEFINITION
    return {"$schema": GenerateJsonSchema.schema_dialect, **readable(schema), "$defs": definitions}
