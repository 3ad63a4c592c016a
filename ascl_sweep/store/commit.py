"""Git commit of this package. Must not import pyarrow: `doctor` runs without it."""

import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def read_commit() -> tuple[str | None, bool | None]:
    """Return the commit and whether the code has changed since; None outside a repository."""
    if _git("ls-files", "--error-unmatch", __file__) is None:
        return None, None  # installed inside another repository
    status = _git("status", "--porcelain", "--", "ascl", "ascl_sweep")
    return _git("rev-parse", "HEAD"), None if status is None else bool(status)


def _git(*words: str) -> str | None:
    command = ["git", "-C", str(_ROOT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
