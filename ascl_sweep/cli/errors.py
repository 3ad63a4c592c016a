"""Error reporting: user errors as one sentence, internal errors with a log, and exit codes."""

import functools
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote

import typer
from rich.markup import escape

from ascl_sweep.cli.common import talk
from ascl_sweep.errors import AsclSweepError, ClusterError, ResourceError

if TYPE_CHECKING:
    from ascl_sweep.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")

RUN_FAILED, BAD_INPUT, BUDGET, NO_RESOURCES, INTERNAL, INTERRUPTED = 1, 2, 3, 4, 70, 130
REMOTE_STORE_FIX = "check that the store is reachable and that its credentials are valid"
LOG_BYTES, OLD_LOGS = 1_000_000, 3

logger = logging.getLogger("ascl_sweep")
logger.addHandler(logging.NullHandler())  # otherwise Python prints warnings to stderr


class _LogFile(RotatingFileHandler):
    """Log file that is created by its first record and whose own errors are ignored."""

    def _open(self) -> TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore errors such as a full disk: the sweep itself reports them."""


class _Settings:
    """State of the current command."""

    debug: bool = False
    log: _LogFile | None = None


def set_debug(debug: bool) -> None:
    """Enable tracebacks, and debug messages in the log."""
    _Settings.debug = debug


def set_up_logging(file: Path) -> None:
    """Log to a rotating file until the command ends: our events, and warnings of libraries.

    With --debug, log all messages.
    """
    level = logging.DEBUG if _Settings.debug else logging.INFO
    log = _LogFile(file, maxBytes=LOG_BYTES, backupCount=OLD_LOGS, encoding="utf-8", delay=True)
    log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(log)
    logging.getLogger().setLevel(level if _Settings.debug else logging.WARNING)
    logger.setLevel(level)
    _Settings.log = log


def driver_log(store: "Store") -> Path:
    """Return the log file of a store's driver: in a local store, or in the user's state folder."""
    if store.folder is not None:
        return store.folder / "driver.log"
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    return state / "ascl-sweep" / f"{quote(store.address, safe='')}.log"


def fail(message: str, code: int) -> NoReturn:
    """Print an error message and exit."""
    if _Settings.debug and sys.exc_info()[0] is not None:
        talk.print(escape(traceback.format_exc()))
    talk.print(f"[bold red]error:[/] {escape(message)}")
    raise typer.Exit(code)


def os_error_text(error: OSError) -> str:
    """Return the file and the reason, without the errno."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def handle_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command so that its errors become a message and an exit code."""

    @functools.wraps(command)
    def handled(*args: P.args, **options: P.kwargs) -> T:
        from ascl.errors import AsclError

        try:
            return command(*args, **options)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # a closed pipe is not an error
            raise
        except (ResourceError, ClusterError) as error:
            fail(str(error), NO_RESOURCES)
        except (AsclError, AsclSweepError) as error:
            fail(str(error), BAD_INPUT)
        except MemoryError as error:
            fail(f"out of memory: {error}; try a smaller batch_size or encoder.width", NO_RESOURCES)
        except OSError as error:
            if not _is_of_the_machine(error):
                _report_internal_error(error)
            logger.error("the command ended", exc_info=error)
            # pyarrow raises plain errors without an errno for remote stores
            remote = type(error) is OSError and error.errno is None
            fix = f"; {REMOTE_STORE_FIX}" if remote else ""
            fail(f"{os_error_text(error)}{fix}", NO_RESOURCES)
        except Exception as error:
            _report_internal_error(error)
        finally:
            _end_logging()

    return handled


def _is_of_the_machine(error: OSError) -> bool:
    """Whether a disk, a permission or the network is the cause, not a bug such as a wrong path."""
    return not isinstance(error, FileNotFoundError | ProcessLookupError | ChildProcessError)


def _report_internal_error(error: Exception) -> NoReturn:
    if _Settings.log is None:
        set_up_logging(Path(tempfile.mkdtemp(prefix="ascl-sweep-")) / "error.log")
    assert _Settings.log is not None
    logger.critical("internal error", exc_info=error)
    file = Path(_Settings.log.baseFilename)
    logged = file.is_file()  # False if the disk is full
    if _Settings.debug or not logged:
        talk.print(escape("".join(traceback.format_exception(error))))
    talk.print(f"[bold red]internal error:[/] {escape(f'{type(error).__name__}: {error}')}")
    where = f"in {file}; `ascl-sweep --debug COMMAND` also prints it" if logged else "above"
    talk.print(f"This is a bug in ascl-sweep. The traceback is {escape(where)}.")
    raise typer.Exit(INTERNAL)


def _end_logging() -> None:
    if _Settings.log is not None:
        logging.getLogger().removeHandler(_Settings.log)
        logging.getLogger().setLevel(logging.WARNING)
        logger.setLevel(logging.NOTSET)
        _Settings.log.close()
        _Settings.log = None
