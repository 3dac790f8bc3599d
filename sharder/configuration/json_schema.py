"""The JSON Schema of records, which editors use to complete and check what people write."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from framedex.sharder.configuration.parameters import Record, plain_value, reader

Json = dict[str, Any]


class _Generator(GenerateJsonSchema):
    """Describes what `record` takes: a key with a default may be empty, which means the default."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # keys are their own titles

    def encode_default(self, dft: Any) -> Any:
        return plain_value(dft)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        described = super().default_schema(schema)
        default = described.pop("default")
        if default is None:
            return described  # it may be null as it is
        return {"anyOf": [described, {"type": "null"}], "default": default}


def definitions(records: list[type[Record]]) -> dict[str, Json]:
    """Return the JSON Schema of each of some records, and of the records in them, by class name."""
    mode: Literal["validation"] = "validation"
    readers = [(cls.__name__, mode, reader(cls)) for cls in records]
    _, schema = TypeAdapter.json_schemas(readers, schema_generator=_Generator)
    found: dict[str, Json] = schema["$defs"]
    return {name: {key: value for key, value in own.items() if key != "title"} for name, own in found.items()}
