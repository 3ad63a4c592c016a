"""The keys of a config, and the JSON Schema of a sweep file that lets editors complete them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from ascl.config import RunConfig
from ascl.methods import load_method, method_names

Schema = dict[str, Any]


@cache
def config_keys() -> Mapping[str, Schema]:
    """Every dotted key that a config can have, over all methods, with the schema of its value."""
    keys = {name: _field(RunConfig, name) for name in RunConfig.model_fields}
    for section in RunConfig.SECTIONS:
        del keys[section]
        for model in _models(section):
            for name in model.model_fields:
                key, schema = f"{section}.{name}", _field(model, name)
                if key in keys and keys[key] != schema:
                    known = keys[key].get("anyOf", [keys[key]])
                    schema = {"anyOf": [*known, *([schema] if schema not in known else [])]}
                keys[key] = schema
    return keys


def _models(section: str) -> list[type[BaseModel]]:
    if section == "method":
        return [load_method(name).config for name in method_names()]
    model: Any = RunConfig.model_fields[section].annotation
    return [model]


def _field(model: type[BaseModel], name: str) -> Schema:
    return dict(_schema(model)["properties"][name])


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def sweep_schema(sweep: type[BaseModel]) -> Schema:
    """The schema of a sweep file, with the config's keys wherever they may stand."""
    schema = sweep.model_json_schema()
    keys = config_keys()
    base = schema["properties"]["base"]
    base["additionalProperties"] = False
    base["properties"] = {k: v for k, v in keys.items() if k != "seed"}
    for section in RunConfig.SECTIONS:
        inner = {k.partition(".")[2]: v for k, v in keys.items() if k.startswith(f"{section}.")}
        base["properties"][section] = {
            "type": "object",
            "additionalProperties": False,
            "properties": inner,
        }
    axes = {key: {"type": "array", "items": value, "minItems": 1} for key, value in keys.items()}
    schema["$defs"]["Axes"] = {"properties": axes, "additionalProperties": False}
    space = schema["$defs"]["Space"]["properties"]
    for form in ("grid", "zip", "one_factor"):
        space[form] = {
            "type": "object",
            "minProperties": 1,
            "description": space[form]["description"],
            "allOf": [{"$ref": "#/$defs/Axes"}],
        }
    domains = schema["$defs"]["OptunaSpace"]["properties"]["domains"]
    domains["propertyNames"] = {"enum": list(keys)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
