"""The Git commit that is recorded with a run."""

import runpy
import subprocess
from pathlib import Path

from ascl_sweep.store import commit


def test_a_change_in_either_package_counts_and_no_other(tmp_path: Path) -> None:
    module = tmp_path / "ascl_sweep" / "store" / "commit.py"
    trainer, docs = tmp_path / "ascl" / "train.py", tmp_path / "docs" / "index.md"
    for path in (module, trainer, docs):
        path.parent.mkdir(parents=True)
        path.touch()
    module.write_text(Path(commit.__file__).read_text())

    def read() -> object:
        return runpy.run_path(str(module))["read_commit"]()

    def git(*words: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    assert read() == (None, None), "the file is not tracked"
    git("add", ".")
    git("commit", "-m", "all")
    head = git("rev-parse", "HEAD")
    docs.write_text("changed")
    assert read() == (head, False)
    trainer.write_text("changed")
    assert read() == (head, True)
    git("commit", "-am", "more")
    module.write_text(module.read_text() + "\n")
    assert read() == (git("rev-parse", "HEAD"), True)
