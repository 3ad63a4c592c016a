"""Write the reference pages of the sweep file and of the command line from the code.

python docs/reference.py
"""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
WIDTH = 120  # of the prose
Schema = Mapping[str, Any]


def pages() -> dict[str, str]:
    """Every page that is written from the code, by its path in docs/."""
    return {"reference/sweep-file.md": sweep_file_page(), "reference/cli.md": cli_page()}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table; a pipe in a cell is escaped, a line break becomes a space."""
    lines = [header, ["---"] * len(header), *rows]
    cells = ([_escape_pipes(" ".join(cell.split())) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


def _escape_pipes(cell: str) -> str:
    # Python-Markdown would show the backslash of an escaped pipe in a code span.
    return re.sub(r"`([^`]*\|[^`]*)`", r"<code>\1</code>", cell).replace("|", "&#124;")


def code(value: object) -> str:
    return f"`{value}`"


# ---------------------------------------------------------------- the sweep file

SWEEP_FILE = """# Sweep file

A sweep is one YAML file. This page is generated from the models that validate it. The same models
give `search_spaces/sweep.schema.json`, which lets editors complete keys; `ascl-sweep schema` prints
it. Unknown keys are errors. `ascl-sweep validate FILE` lists every error with its line: first all
errors of keys and values, and when there are none, all conflicts between keys.

{sections}
## Config keys

The keys of a run. They are used in `base` (nested), in `space` and in overrides (dotted:
`--set optim.lr=0.03`), and they are the columns of the store. The default is the one of the schema;
the preset, the method and the dataset change some defaults. The file `config.yaml` in the folder of
a run has all values that the run used.

{keys}"""


def sweep_file_page() -> str:
    from ascl_sweep.spec.sweep import json_schema

    schema: Schema = json_schema()
    models = {"": schema, **schema["$defs"]}
    pages = [_model_section(name, models[name], models) for name in _reachable(models)]
    return SWEEP_FILE.format(sections="\n".join(pages), keys=_config_keys())


def _reachable(models: Mapping[str, Schema]) -> list[str]:
    """The models in the order in which a reader meets them; `Axes` is another name of a grid."""
    found, waiting = [""], [""]
    while waiting:  # a section's own sections follow it
        fields = {key: part for key, part in models[waiting.pop(0)].items() if key != "$defs"}
        for name in re.findall(r"#/\$defs/(\w+)", str(fields)):
            if name not in found and name != "Axes":
                found.append(name)
                waiting.append(name)
    return sorted(found, key=lambda name: _place(name, models))


def _place(name: str, models: Mapping[str, Schema]) -> tuple[int, str]:
    """Sections in the order of the top level, each followed by its own sections."""
    path = _path(name, models) if name else ""
    top = list(models[""]["properties"])
    return (top.index(path.partition(".")[0]) if path else -1, path)


def _model_section(name: str, model: Schema, models: Mapping[str, Schema]) -> str:
    text = [f"## {_title(name, models)}\n"]
    if name:
        text.append(f"{model.get('description', '')}\n")
    properties: Mapping[str, Schema] = model.get("properties", {})
    one_of = [choice["required"][0] for choice in model.get("oneOf", ())]
    if one_of and "exactly one" not in model.get("description", "").lower():
        text.append(f"Exactly one of: {', '.join(map(code, one_of))}.\n")
    if not properties:
        text.append(f"Value: {_type(model, models)}.\n" if "allOf" not in model else AXES)
        return "\n".join(text)
    required = model.get("required", ())
    rows = [
        [code(key), _type(field, models), *_describe(field, key in required)]
        for key, field in properties.items()
    ]
    return "\n".join([*text, table(("key", "value", "default", "meaning"), rows)])


AXES = "Value: a mapping from a [config key](#config-keys) to the list of its values.\n"


def _path(name: str, models: Mapping[str, Schema]) -> str:
    """The place of a model in the file, such as `space.grid`."""
    for parent, model in models.items():
        for key, field in model.get("properties", {}).items():
            if f"#/$defs/{name}'" in str(field) and parent != name:
                above = _path(parent, models) if parent else ""
                inner = "KEY" if "additionalProperties" in field else ""
                return ".".join(filter(None, (above, key, inner)))
    return name


def _title(name: str, models: Mapping[str, Schema]) -> str:
    return f"`{_path(name, models)}`" if name else "Top level"


def _anchor(title: str) -> str:
    """Return the anchor of a title, as GitHub and MkDocs make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _type(field: Schema, models: Mapping[str, Schema]) -> str:
    """The accepted values in a few words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{_path(name, models)}](#{_anchor(_title(name, models))})"
    if forms := field.get("anyOf") or field.get("oneOf"):
        kinds = [_type(kind, models) for kind in forms if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(map(code, field["enum"]))
    if "const" in field:
        return code(field["const"])
    kind = field.get("type")
    if kind in ("integer", "number"):
        return ("integer" if kind == "integer" else "number") + _bounds(field)
    if kind == "array":
        items = field.get("items") or {}
        inner = _type(items, models) if items else "values"
        if field.get("maxItems") == 2 and field.get("minItems") == 2:
            return "`[low, high]`"
        return f"list of {inner}"
    if kind == "object":
        inner = field.get("additionalProperties")
        if isinstance(inner, Mapping) and "$ref" in inner:
            return f"mapping of keys to {_type(inner, models)}"
        return "[config keys](#config-keys), nested" if "properties" in field else "mapping"
    if field.get("pattern", "").endswith("%$"):
        return "percentage such as `10%`"
    return {"string": "text", "boolean": "true or false"}.get(str(kind), "value")


def _bounds(field: Schema) -> str:
    signs = {
        "minimum": "≥",
        "exclusiveMinimum": ">",
        "maximum": "≤",
        "exclusiveMaximum": "<",
    }
    bounds = [f"{sign} {_number(field[name])}" for name, sign in signs.items() if name in field]
    return f" {', '.join(bounds)}" if bounds else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _describe(field: Schema, required: bool = False) -> tuple[str, str]:
    """The default and the meaning of a field; a meaning may end with "Default: …"."""
    meaning = " ".join(field.get("description", "").split())
    meaning, _, stated = meaning.partition("Default: ")
    value = field.get("default")
    if required:
        return "**required**", meaning.removesuffix("Required.")
    if value is None or value == [] or isinstance(value, Mapping):
        return stated.rstrip(".") or "–", meaning
    shown = str(value).lower() if isinstance(value, bool) else value
    return code(shown), meaning


def _config_keys() -> str:
    from ascl.config import RunConfig
    from ascl.keys import describe_keys
    from ascl.methods import load_method, method_names
    from ascl_sweep.spec.schema import config_keys

    users: dict[str, list[str]] = {}
    for name in method_names():
        for field in load_method(name).config.model_fields:
            users.setdefault(f"method.{field}", []).append(name)
    facts, keys = describe_keys(), dict(config_keys())
    keys["method.name"] = {
        "enum": list(method_names()),
        "default": "moco",
        "description": "Method to train; see [Methods](../methods.md).",
    }
    text = []
    for section in ("", *RunConfig.SECTIONS):
        text.append(f"### {f'Keys of `{section}`' if section else 'Keys without a section'}\n")
        rows = []
        for key, schema in keys.items():
            if key.rpartition(".")[0] == section:
                used_by = users.get(key, [])
                if len(used_by) == len(method_names()):
                    used_by = []
                rows.append([code(key), *_key_facts(schema, facts.get(key), used_by)])
        text.append(table(("key", "value", "default", "meaning"), rows))
    return "\n".join(text)


def _key_facts(schema: Schema, known: Any, used_by: Sequence[str]) -> tuple[str, str, str]:
    """The value, default and meaning of a config key. Methods may declare one key differently."""
    forms = [form for form in schema.get("anyOf", ()) if "title" in form] or [schema]
    defaults, meanings = zip(*map(_describe, forms), strict=True)
    meaning = min(filter(None, meanings), key=len, default="")
    default = ", ".join(dict.fromkeys(defaults))
    default += " (by method)" if len(set(defaults)) > 1 else ""
    notes = [meaning]
    if used_by:
        notes.append(f"Methods: {', '.join(used_by)}.")
    if known is not None and known.label:
        notes.append(f"In tables: *{known.label}*.")
    if known is not None and not known.changes_results:
        notes.append("Not part of a run's id.")
    return _type(forms[0], {}), default, " ".join(filter(None, notes))


# ---------------------------------------------------------------- the command line

CLI = """# Command line

This page is generated from the commands. Commands print results on stdout and messages on stderr.
Colors are off with `NO_COLOR` or when the output is not a terminal. `ascl-sweep --debug COMMAND`
shows tracebacks and writes a detailed log. The first Ctrl-C lets each run finish its epoch, the
second stops at once; after both, the same command resumes.

{contents}
## Exit codes

{codes}
"""


def cli_page() -> str:
    import typer

    from ascl_sweep.cli.main import PANELS, app

    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = []
    for panel, functions in PANELS.items():
        text.append(f"## {panel}\n")
        for function in functions:
            name = function.__name__.replace("_", "-")
            text.append("\n".join(_command(name, commands[name])))
    return CLI.format(contents="\n".join(text), codes=table(("code", "meaning"), _exit_codes()))


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if not p.opts[0].startswith("-")]
    options = [p for p in command.params if p.opts[0].startswith("-") and not p.hidden]
    usage = [_argument(p) for p in arguments]
    yield f"### {name}\n"
    yield f"```text\nascl-sweep {' '.join([name, '[OPTIONS]', *usage])}\n```\n"
    for paragraph in command.help.split("\n\n"):
        yield f"{textwrap.fill(paragraph, WIDTH, break_on_hyphens=False)}\n"
    if arguments:
        yield table(
            ("argument", "meaning"), [[code(_argument(p)), p.help or ""] for p in arguments]
        )
    if options:
        rows = [[", ".join(map(code, p.opts)), _value(p), *_default(p)] for p in options]
        yield table(("option", "value", "default", "meaning"), rows)


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    name = f"{name}..." if parameter.nargs == -1 else name
    return name if parameter.required else f"[{name}]"


def _value(parameter: Any) -> str:
    from enum import Enum
    from typing import get_args, get_origin

    if parameter.is_flag:
        return "flag"
    kind = parameter.type_descriptor.annotation
    repeated = get_origin(kind) is list
    kind = get_args(kind)[0] if repeated else kind
    if isinstance(kind, type) and issubclass(kind, Enum):
        text = ", ".join(code(member.value) for member in kind)
    elif not isinstance(kind, type) and get_args(kind):
        text = ", ".join(map(code, get_args(kind)))
    else:
        words = {"str": "text", "Path": "file or folder", "int": "integer", "float": "number"}
        text = code(parameter.metavar) if parameter.metavar else words[kind.__name__]
    return f"{text} (repeatable)" if repeated else text


def _default(parameter: Any) -> tuple[str, str]:
    """The default and the meaning of an option; the help may end with "Default: …"."""
    meaning, _, stated = " ".join((parameter.help or "").split()).partition("Default: ")
    value = parameter.default
    if parameter.required:
        return "**required**", meaning
    if value in (None, False, (), []) or callable(value):
        return stated.rstrip(".") or "–", meaning
    return code(value), meaning


def _exit_codes() -> list[list[str]]:
    from ascl_sweep.cli import errors

    meanings = {
        0: "All runs are done.",
        errors.RUN_FAILED: "Some runs failed. The next `run` tries them again.",
        errors.BAD_INPUT: "Wrong usage, or an invalid file.",
        errors.BUDGET: "The budget is used up. Repeat the command to resume.",
        errors.NO_RESOURCES: "The cluster, a disk or the resources cannot do what the sweep needs.",
        errors.INTERNAL: "An internal error: the message names the log with the traceback.",
        errors.INTERRUPTED: "Interrupted with Ctrl-C. Repeat the command to resume.",
    }
    return [[code(number), meaning] for number, meaning in sorted(meanings.items())]


if __name__ == "__main__":
    for path, content in pages().items():
        (DOCS / path).write_text(content)
        print(f"wrote {DOCS / path}")
