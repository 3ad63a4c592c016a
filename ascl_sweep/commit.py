"""Which commit of ours this is."""

import subprocess
from pathlib import Path


def commit() -> tuple[str | None, bool | None]:
    """The commit, and whether the code was changed since; none where it is in no repository."""
    here = Path(__file__).parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", __file__) is None:
        return None, None  # not of a repository that we are merely in
    status = git("status", "--porcelain", "--", str(here.parent / "ascl"), str(here))
    return git("rev-parse", "HEAD"), None if status is None else bool(status)
