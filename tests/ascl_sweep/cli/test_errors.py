"""Error reporting: user errors are one message, internal errors are reported as such and logged."""

import logging
import re
from pathlib import Path

import pytest
from PIL import UnidentifiedImageError

from ascl_sweep.cli import errors
from ascl_sweep.errors import AsclSweepError, ClusterError, ResourceError, UsageError
from ascl_sweep.runtime import sweeps
from ascl_sweep.runtime.callbacks.base import Callback
from ascl_sweep.runtime.controller import End
from ascl_sweep.store.store import Store
from tests.ascl_sweep.conftest import Ask
from tests.stores import example
from tests.sweeps import GRID


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep file, a store, and a folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(errors.tempfile, "tempdir", None)  # read TMPDIR again
    (tmp_path / "tmp").mkdir()
    example(tmp_path / "results")
    (tmp_path / "sweep.yaml").write_text(GRID)


def zip_unequal(*args: object, **options: object) -> object:
    return list(zip([1, 2], [1], strict=True))


def test_a_bug_is_an_internal_error_and_not_bad_usage(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "sweeps", zip_unequal)
    said = ask("report")
    assert said.exit_code == 70
    message, where = said.stderr.splitlines()
    assert message == ("internal error: ValueError: zip() argument 2 is shorter than argument 1")
    log = Path(re.findall(r"traceback is in (\S+);", where)[0])
    assert "in zip_unequal" in log.read_text() and "--debug" in where


def test_a_traceback_is_shown_with_debug_only(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    user = ask("--debug", "status", "nonsense")
    assert user.exit_code == 2 and "UsageError: no sweep named 'nonsense'" in user.stderr
    assert "Traceback" not in ask("status", "nonsense").stderr
    monkeypatch.setattr(Store, "sweeps", zip_unequal)
    assert "in zip_unequal" in ask("--debug", "report").stderr
    assert "Traceback" not in ask("report").stderr, "--debug holds for one command"


def test_the_drivers_log_is_in_the_store_and_made_only_if_there_is_something_to_log(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "results" / "driver.log"
    words = ("run", "sweep.yaml", "--yes")
    assert ask(*words, "--dry-run").exit_code == 0
    assert not log.exists()

    def fail(*args: object, **options: object) -> None:
        logging.getLogger("some.library").warning("look out")
        logging.getLogger("some.library").info("all is well")
        zip_unequal()

    monkeypatch.setattr(sweeps, "run_sweeps", fail)
    said = ask(*words)
    assert said.exit_code == 70 and str(log) in said.stderr and "look out" not in said.stderr
    text = log.read_text()
    assert "WARNING some.library: look out" in text and "in zip_unequal" in text
    assert "all is well" not in text
    ask("--debug", *words)
    assert "all is well" in log.read_text()
    assert not any(isinstance(h, errors._LogFile) for h in logging.getLogger().handlers)


def test_the_log_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "LOG_BYTES", 1000)
    errors.set_up_logging(tmp_path / "logs" / "driver.log")
    try:
        for _ in range(100):
            logging.getLogger("x").warning("y" * 100)
    finally:
        errors._end_logging()
    sizes = [path.stat().st_size for path in (tmp_path / "logs").iterdir()]
    assert len(sizes) == 4 and max(sizes) <= 1000


def test_a_log_that_cannot_be_written_disturbs_nobody_and_the_traceback_is_shown(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results" / "driver.log").mkdir()
    monkeypatch.setattr(sweeps, "run_sweeps", zip_unequal)
    said = ask("run", "sweep.yaml", "--yes")
    assert said.exit_code == 70 and "Logging error" not in said.stderr
    assert "in zip_unequal" in said.stderr and "The traceback is above." in said.stderr


def test_the_log_of_a_remote_store_is_in_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = errors.driver_log(Store("s3://bucket/results?region=eu-central-1"))
    assert found.parent == tmp_path / "ascl-sweep" and "bucket" in found.name


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("so"), 2, "error: so\n"),
        (ResourceError("so"), 4, "error: so\n"),
        (ClusterError("so"), 4, "error: so\n"),
        (AsclSweepError("so"), 2, "error: so\n"),
        (PermissionError(13, "Permission denied", "x"), 4, "error: x: Permission denied\n"),
        (OSError("the bucket does not answer"), 4, "error: the bucket does not answer; check that"),
        (UnidentifiedImageError("cannot identify x"), 4, "error: cannot identify x\n"),
        (FileNotFoundError(2, "No such file", "x"), 70, "internal error: FileNotFoundError"),
        (MemoryError("so"), 4, "error: out of memory: so; try a smaller batch_size"),
        (RuntimeError("so"), 70, "internal error: RuntimeError: so\n"),
        (KeyError("so"), 70, "internal error: KeyError: 'so'\n"),
    ],
)
def test_every_error_has_its_exit_code(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    def fail(store: Store) -> None:
        raise error

    monkeypatch.setattr(Store, "sweeps", fail)
    said = ask("status")
    assert said.exit_code == code and said.stderr.startswith(message), said.stderr


def test_a_run_of_sweeps_passes_its_events_to_the_log(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(prepared: object, executor: object, callback: Callback, **options: object) -> End:
        callback.on_note("store unreachable")
        return End.DONE

    monkeypatch.setattr(sweeps, "run_sweeps", note)
    assert ask("run", "sweep.yaml", "--yes").exit_code == 0
    log = (tmp_path / "results" / "driver.log").read_text()
    assert log.endswith(" INFO ascl_sweep: store unreachable\n")
