"""Rules of the tree that import-linter (pyproject.toml) cannot express."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.stores import example


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_methods_never_import_each_other() -> None:
    methods = [p for p in files("ascl/methods") if p.stem not in ("__init__", "base")]
    names = {f"ascl.methods.{p.stem}" for p in methods}
    for path in methods:
        assert not imports(path) & names, path


def test_only_the_command_line_prints_and_exits() -> None:
    for path in files("ascl") + files("ascl_sweep"):
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("print", "exit"), f"{path}:{node.lineno}"


def test_help_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from ascl_sweep.cli import app\n"
        "assert not {'torch', 'ray', 'pyarrow', 'scipy', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


FORMATS = ("md", "latex", "csv", "json", "term")
# In this order each command may load what those before it may, and more.
QUICK_COMMANDS: tuple[tuple[list[str], set[str]], ...] = (
    (["status", "--store", "nowhere"], {"torch", "ray", "optuna", "scipy", "pandas"}),
    *(
        (
            ["report", "--store", "EXAMPLE", "--format", form],
            {"torch", "ray", "optuna", "pandas", "matplotlib", "plotly"},
        )
        for form in FORMATS
    ),
    (["validate", "search_spaces/quickstart.yaml"], {"ray", "optuna", "torchvision"}),
    (["plan", "search_spaces/quickstart.yaml"], {"ray", "torchvision"}),
    (["submit", "nowhere", "--address", "http://127.0.0.1:1"], {"ray", "torchvision"}),
)
RUN_QUICK_COMMANDS = """
import sys
from ascl_sweep.cli import app
for words, heavy in {commands!r}:
    code = app(words, standalone_mode=False)
    assert not code or "nowhere" in words, (words, code)
    assert not heavy & set(sys.modules), (words, heavy & set(sys.modules))
"""


def test_quick_commands_do_not_load_what_is_slow(tmp_path: Path) -> None:
    """In one process: its modules after a command are those of all commands so far."""
    example(tmp_path)
    commands = [
        ([str(tmp_path) if word == "EXAMPLE" else word for word in words], heavy)
        for words, heavy in QUICK_COMMANDS
    ]
    code = RUN_QUICK_COMMANDS.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_unpickled_or_run_through_a_shell() -> None:
    for path in files("ascl") + files("ascl_sweep"):
        text = path.read_text()
        assert not {"pickle", "cloudpickle", "dill"} & imports(path), path
        assert "shell=True" not in text, path
        assert "weights_only=False" not in text, path
        assert "yaml.load(" not in text, path
