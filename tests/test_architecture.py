"""Rules of the tree: who may import whom, and what must not be loaded to be quick."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ledgers import example

ROOT = Path(__file__).parent.parent


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


def test_the_trainer_knows_nothing_of_sweeps() -> None:
    for path in files("ascl"):
        assert not any(name.split(".")[0] == "ascl_sweep" for name in imports(path)), path


def test_methods_never_import_each_other() -> None:
    methods = [p for p in files("ascl/methods") if p.name != "__init__.py"]
    names = {f"ascl.methods.{p.stem}" for p in methods}
    for path in methods:
        assert not imports(path) & names, path


@pytest.mark.parametrize("library", ["ray", "optuna", "pyarrow"])
def test_the_trainer_is_plain_pytorch(library: str) -> None:
    for path in files("ascl"):
        if path.name != "worker.py":
            assert not any(name.split(".")[0] == library for name in imports(path)), path


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
        "assert not {'torch', 'ray', 'pyarrow', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["status", "--store", "nowhere"], {"torch", "ray", "optuna", "scipy", "pandas"}),
        (["validate", "search_spaces/quickstart.yaml"], {"ray", "optuna", "torchvision"}),
        (["plan", "search_spaces/quickstart.yaml"], {"ray", "torchvision"}),
        (["submit", "nowhere", "--address", "http://127.0.0.1:1"], {"ray", "torchvision"}),
        *(
            (
                ["report", "--store", "EXAMPLE", "--format", form],
                {"torch", "ray", "optuna", "pandas", "matplotlib", "plotly", "scipy.stats"},
            )
            for form in ("md", "latex", "csv", "json", "term")
        ),
    ],
)
def test_quick_commands_do_not_load_what_is_slow(
    words: list[str], heavy: set[str], tmp_path: Path
) -> None:
    if "EXAMPLE" in words:
        example(tmp_path)
    words = [str(tmp_path) if word == "EXAMPLE" else word for word in words]
    code = (
        "import sys; from ascl_sweep.cli import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"assert not {heavy!r} & set(sys.modules), {heavy!r} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "AssertionError" not in done.stderr, done.stderr
    assert done.returncode == 0 or "nowhere" in words, done.stderr


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("pyarrow", {"ledger", "parquet", "store"}),
        ("optuna", {"proposals", "study"}),
        ("ray", {"search", "cluster", "stopping", "jobs", "dashboard", "probes"}),
        ("matplotlib", {"draw"}),
        ("sklearn", {"tsne"}),
    ],
)
def test_each_library_has_its_home(library: str, homes: set[str]) -> None:
    for path in files("ascl_sweep"):
        if path.stem not in homes:
            assert not any(name.split(".")[0] == library for name in imports(path)), path


def test_nothing_is_unpickled_or_run_through_a_shell() -> None:
    for path in files("ascl") + files("ascl_sweep"):
        text = path.read_text()
        assert not {"pickle", "cloudpickle", "dill"} & imports(path), path
        assert "shell=True" not in text, path
        assert "weights_only=False" not in text, path
        assert "yaml.load(" not in text, path
