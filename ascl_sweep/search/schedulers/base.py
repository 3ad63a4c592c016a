"""The scheduler protocol, the `Stopper` that applies a scheduler, and the registry of schedulers.

A scheduler stops poor runs of a search early. Every other module of this package defines one: its
`Config` is the section named after the module under `stop:` in a sweep file, and describes the rule
to `plan`, `simulate` and reports. A `Stopper` applies a scheduler to a live sweep, to recorded
epochs after a restart, and in `simulate`. Values are accuracies from 0 to 1; higher is better.
"""

import hashlib
import importlib
import math
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, Self

from pydantic import AfterValidator, BeforeValidator, ValidationError, WithJsonSchema

from ascl.errors import explain_validation, unknown_name
from ascl.sections import Section
from ascl_sweep.errors import UsageError

# ---------------------------------------------------------------- settings


def _parse_share(value: object) -> int | float:
    """Parse `10%` or 0.1."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,3}(\.\d{1,9})?\s*%", value.strip()):
        return float(value.strip().rstrip("% ")) / 100
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        raise ValueError(f"must be a share such as 10% or 0.1, got {value!r}")
    return value


def _check_share(value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"must be a share from 0 to below 1 such as 10% or 0.1, got {value!r}")
    return float(value)


def _parse_moment(value: object) -> int | float:
    """Parse a share of the epochs (`10%` or 0.1) or a number of epochs."""
    moment = _parse_share(value)
    if not (0 < moment < 1 if isinstance(moment, float) else moment >= 1):
        raise ValueError(
            "must be a whole number of epochs or a share of the epochs such as 10% or 0.1, "
            f"got {moment!r}"
        )
    return moment


_SHARE = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[0-9.]+ ?%$"}]}
Share = Annotated[
    int | float,
    BeforeValidator(_parse_share),
    AfterValidator(_check_share),
    WithJsonSchema(_SHARE),
]
Moment = Annotated[int | float, BeforeValidator(_parse_moment), WithJsonSchema(_SHARE)]


class SchedulerConfig(Section):
    """Settings and description of a scheduler."""

    START: ClassVar[str] = "grace"
    """Name of the field with the first epoch at which a run may be stopped."""
    COMPARED: ClassVar[Mapping[str, str]] = {}
    """Settings that `simulate` compares by default: label → settings."""

    metric: Literal["knn_top1"] = "knn_top1"
    """Metric that ranks the runs. Only knn_top1, the online kNN accuracy, is available."""

    def build(self, epochs: int) -> "Scheduler":
        """Create a scheduler that has seen no values, for runs of this many epochs."""
        raise NotImplementedError

    def stop_epochs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs at which a run can be stopped."""
        raise NotImplementedError

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs that figures mark."""
        return self.stop_epochs(epochs)

    def describe(self) -> str:
        """Return a short description of the rule for reports."""
        raise NotImplementedError

    def warnings(self, runs: int) -> Iterator[str]:
        """Yield warnings about a search of this many runs."""
        yield from ()

    @property
    def start(self) -> int | float:
        moment: int | float = getattr(self, self.START)
        return moment

    def in_epochs(self, epochs: int) -> Self:
        """Convert the start to a number of epochs, as `build` and `describe` require."""
        start = self.start
        if not isinstance(start, int):
            start = max(1, round(start * epochs))
        if start > epochs:
            raise UsageError(
                f"{self.name()}: {self.START} must not exceed the number of epochs, got "
                f"{self.START}={start}, epochs={epochs}; try {self.START}={max(1, epochs // 10)}"
            )
        return self.model_copy(update={self.START: start})

    @classmethod
    def name(cls) -> str:
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def defaults(cls) -> dict[str, str]:
        """Return the defaults as a user writes them, such as {"grace": "10%", "factor": "3"}."""
        fields = {k: f.default for k, f in cls.model_fields.items() if k != "metric"}
        percent = {cls.START: f"{fields[cls.START]:.0%}"}
        return {key: percent.get(key) or f"{value:g}" for key, value in fields.items()}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse settings such as `grace=10%,factor=3`; missing settings get their defaults."""
        example = f"{cls.name()}:" + ",".join(f"{k}={v}" for k, v in cls.defaults().items())
        given = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in cls.defaults():
                raise UsageError(
                    f"{cls.name()} has no option {key!r}; it has {' and '.join(cls.defaults())}; "
                    f"try {example!r}"
                )
            if not equals:
                raise UsageError(
                    f"{cls.name()} accepts {' and '.join(cls.defaults())}, each as key=value, "
                    f"got {part!r} in {text!r}; try {example!r}"
                )
            given[key] = _parse_number(value)
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            issues = (f"{i.key} {i.message}" for i in explain_validation(error, "", cls))
            raise UsageError(f"{'; '.join(issues)}; try {example!r}") from error


def _parse_number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def scheduler_names() -> tuple[str, ...]:
    """Return the names of all schedulers: the modules of this package."""
    package = importlib.import_module(__package__)
    return tuple(sorted({m.name for m in pkgutil.iter_modules(package.__path__)} - {"base"}))


def load_scheduler(name: str) -> type[SchedulerConfig]:
    """Return the settings class of a scheduler."""
    if name not in scheduler_names():
        raise UsageError(unknown_name("scheduler", name, scheduler_names()))
    config: type[SchedulerConfig] = importlib.import_module(f"{__package__}.{name}").Config
    return config


# ---------------------------------------------------------------- decisions


class Scheduler(Protocol):
    """The state of a stopping rule. It receives each value once, a run's epochs in order."""

    @property
    def rungs(self) -> Mapping[float, Mapping[str, float]]:
        """The values that rank the runs: milestone → run → value."""
        ...

    def tell(self, run_id: str, epoch: int, value: float) -> str:
        """Record a value; return the reason to stop the run, or an empty string."""
        ...


@dataclass(frozen=True)
class Decision:
    """Whether a run stops after an epoch, and why."""

    stop: bool
    because: str = ""
    audited: bool = False
    """The scheduler chose to stop the run, now or earlier, but the run continues as an audit."""
    diverged: bool = False


GO = Decision(stop=False)
AUDITED = Decision(stop=False, audited=True)
CONTINUES = "continues as an audit; "


class Stopper:
    """Applies a scheduler to the runs of one search; handles missing values, repeats and audits.

    `audit` is the share of the runs to be stopped that continue, to measure false stops.
    """

    def __init__(self, config: SchedulerConfig, epochs: int, audit: float = 0.0) -> None:
        self.config, self.epochs, self.audit = config.in_epochs(epochs), epochs, audit
        self._scheduler = self.config.build(epochs)
        self._last: dict[str, int] = {}  # latest epoch of each run
        self._failed: dict[tuple[str, int], Decision] = {}  # decisions where the rule chose to stop
        self._audited: dict[str, int] = {}  # first audited epoch of each run
        self._reopened: dict[str, Decision] = {}  # decision for each run that must not stop

    @property
    def stop_epochs(self) -> tuple[int, ...]:
        """The epochs at which the rank of a measured value can stop a run."""
        return self.config.stop_epochs(self.epochs)

    @property
    def rungs(self) -> dict[float, dict[str, float]]:
        """The values that rank the runs: milestone → run → value."""
        return {milestone: dict(values) for milestone, values in self._scheduler.rungs.items()}

    def audit_run(self, run_id: str, because: str) -> None:
        """Let a run continue to its end that the scheduler stopped for this reason."""
        because = because.removeprefix(CONTINUES)
        self._reopened[run_id] = Decision(False, f"{CONTINUES}{because}", audited=True)

    def is_audited(self, run_id: str) -> bool:
        """Whether the scheduler chose to stop a run that continues as an audit."""
        return run_id in self._audited or run_id in self._reopened

    def decide(self, run_id: str, epoch: int, value: float | None) -> Decision:
        """Decide whether a run stops. Pass each *measured* epoch, a run's epochs in order.

        None means that a measurement is missing; do not pass epochs that `eval.knn_every` skips.
        Repeating an epoch changes nothing and returns the same decision, so a retried run may
        repeat its epochs; an epoch that arrives after a later one is not ranked. A stopped run may
        have further values, because a restart replays runs in a different order.
        """
        audited = run_id in self._reopened or self._audited.get(run_id, epoch) < epoch
        if value is None or not math.isfinite(value):  # NaN would pass every cut
            missing = "missing" if value is None else value
            return Decision(
                stop=epoch < self.epochs,
                because=f"diverged at epoch {epoch}: kNN is {missing}",
                audited=audited,
                diverged=True,
            )
        if (run_id, epoch) in self._failed:
            return self._reopened.get(run_id, self._failed[run_id, epoch])
        because = ""
        # The last epoch cannot be stopped any more, and its value would raise the cut of a much
        # earlier rung.
        if self._last.get(run_id, 0) < epoch < self.epochs:
            self._last[run_id] = epoch
            because = self._scheduler.tell(run_id, epoch, float(value))
        if run_id in self._reopened:
            return self._reopened[run_id]
        if not because:
            return AUDITED if audited else GO
        if draws_audit(run_id, self.audit):
            self._audited.setdefault(run_id, epoch)
            decision = Decision(False, f"{CONTINUES}{because}", audited=True)
        else:
            decision = Decision(True, because)
        self._failed[run_id, epoch] = decision
        return decision


def draws_audit(run_id: str, share: float) -> bool:
    """Whether a run is audited. Depends only on the run id, so a restart decides the same."""
    return audit_rank(run_id) < share


def audit_rank(run_id: str) -> float:
    """Return a number from 0 to 1 that a run's id determines; small numbers are audited first."""
    digest = hashlib.sha256(f"audit {run_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def format_apart(value: float, cut: float) -> tuple[str, str]:
    """Format two values as percentages, with enough digits to distinguish them."""
    for digits in range(1, 16):
        texts = f"{value:.{digits}%}", f"{cut:.{digits}%}"
        if texts[0] != texts[1]:
            return texts
    return repr(value), repr(cut)
