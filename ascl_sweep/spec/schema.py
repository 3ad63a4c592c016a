"""The config keys, and the JSON Schema with which editors complete and check sweep files."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from ascl.config import RunConfig
from ascl.methods import load_method, method_names
from ascl_sweep.spec.space import AxesForm

Schema = dict[str, Any]


@cache
def config_keys() -> Mapping[str, Schema]:
    """Return every dotted config key of all methods with the JSON Schema of its value."""
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
    """Return the JSON Schema of a sweep file, with the config keys in `base` and `space`."""
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
    definitions = schema["$defs"]
    definitions["Axes"] = {"properties": axes, "additionalProperties": False}
    for definition in definitions.values():
        if "domains" in (properties := definition.get("properties", {})):
            properties["domains"]["propertyNames"] = {"enum": list(keys)}
    for form in AxesForm.__subclasses__():
        name = form.__name__
        definitions[name] |= {"minProperties": 1, "allOf": [{"$ref": "#/$defs/Axes"}]}
        del definitions[name]["additionalProperties"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
