"""The training loop: `build(config)` makes a Run, `train(run)` yields one EpochMetrics per epoch.

`train` is a plain generator: the caller decides when to save, report or stop. It prints nothing.
`advance` also yields the moments within the long evaluation of the last epoch at which the run can
be saved.
"""

import math
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ascl import distributed
from ascl.augment.views import ViewSpec, small_view
from ascl.config import RunConfig, explain_large_bank
from ascl.data.loader import Pixels, to_device, training_batches
from ascl.data.subset import Data, load_data
from ascl.distributed import plan_shuffle
from ascl.errors import DivergedError, RunError
from ascl.eval.extract import (
    extract_features,
    extract_own_features,
    own_labels,
    report_batches,
)
from ascl.eval.knn import knn_top1
from ascl.eval.linear_probe import ProbeState, linear_probe
from ascl.memory import peak_gb, reset_peak
from ascl.methods import load_method
from ascl.methods.base import Batch, EpochStart, Method, TrainingSet
from ascl.metrics import EpochMetrics
from ascl.models.resnet import ResNet
from ascl.optim import build_optimizer, rate_at
from ascl.progress import OnProgress, no_progress
from ascl.seeding import generator, seeded_init
from ascl.threads import StepThreads

DIAGNOSE_EVERY = 16  # steps between diagnostics of the soft labels: below 1% of the time
CHECK_EVERY = 32  # steps between checks for a non-finite loss: each check waits for the device
SAVE_SECONDS = 10.0  # shortest time between two saves of an evaluation
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stage(Enum):
    """Moment within the last epoch at which a run can be saved."""

    TRAINED = "trained, not scored"
    EVALUATING = "scored in part"


@dataclass(frozen=True)
class TrainedEpoch:
    """Results of training for one epoch."""

    epoch: int
    loss: float
    lr: float  # at the last step
    seconds: float
    diagnostics: dict[str, float | None]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Identifies these weights: training the same epoch again may differ in rounding."""


@dataclass
class Evaluation:
    """What is done of the evaluation of an epoch."""

    seconds: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    probe: ProbeState | None = None


@dataclass
class Run:
    """Config, data and training state of a run."""

    config: RunConfig
    data: Data
    pixels: Pixels
    method: Method
    model: nn.Module  # the method, wrapped in DDP if there are several ranks
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    threads: StepThreads | None = None  # on a CPU
    epoch: int = 0  # epochs done
    history: list[EpochMetrics] = field(default_factory=list)
    trained: TrainedEpoch | None = None  # the next epoch, if it is trained but not scored
    evaluation: Evaluation = field(default_factory=Evaluation)  # of `trained`

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data.train) // self.config.batch_size

    def autocast(self) -> AbstractContextManager[None]:
        precision = self.config.runtime.precision
        return torch.autocast(
            self.pixels.device.type,
            dtype=AUTOCAST.get(precision),
            enabled=precision in AUTOCAST,
        )

    def encode(self, images: Tensor) -> Tensor:
        """Return features of the frozen encoder, for evaluation."""
        return _encode(self, self.method.encoder, images)


def _encode(run: Run, module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad(), run.autocast():
        out: Tensor = module(images)
    return out


def pick_device(name: str) -> torch.device:
    """Return the named device of this machine; `auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("a meta device stores no values")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"runtime.device must be a device of this machine, got {name!r} ({reason}); "
            "try auto or cpu"
        ) from error
    return device


def build(
    config: RunConfig, *, data: Data | None = None, device: torch.device | None = None
) -> Run:
    """Build a run that is ready to train.

    Pass `data` if it is already loaded, and `device` if a scheduler has assigned one.
    """
    device = device or pick_device(config.runtime.device)
    if data is None:
        d = config.data
        data = load_data(d.name, d.root, train_size=d.train_size, holdout=d.holdout)
    if config.method.needs_labels:
        data = _keep_labelled(config, data)
    _check_sizes(config, len(data.train))
    train = to_device(data.train, device)
    reference = train if data.reference is data.train else to_device(data.reference, device)
    data = Data(data.spec, train, reference, to_device(data.test, device), data.scored)
    training = TrainingSet(len(data.train), data.spec.num_classes)
    with seeded_init(config.seed, "init"):
        method = load_method(config.method.name).build(config, training)
    pixels = Pixels.of(data.spec, device, channels_last=config.runtime.channels_last)
    method.to(device).to(memory_format=pixels.memory_format)
    for part in method.modules():
        if isinstance(part, ResNet):  # the online encoder and the momentum encoder
            part.cut_batches(config.runtime.micro_batches)
            if config.runtime.compile:
                part.compile()
    model: nn.Module = method
    if distributed.world_size() > 1:
        # Do not broadcast buffers: banks are equal by construction, and running statistics are
        # averaged once per epoch; sending a bank of 65,536 in every step would be slow.
        model = DistributedDataParallel(method, broadcast_buffers=False)
    scaler = torch.amp.GradScaler(device.type, enabled=config.runtime.precision == "fp16")
    return Run(
        config=config,
        data=data,
        pixels=pixels,
        method=method,
        model=model,
        optimizer=build_optimizer(method, config.optim, scaled=scaler.is_enabled()),
        scaler=scaler,
        threads=StepThreads(torch.get_num_threads()) if device.type == "cpu" else None,
    )


def _keep_labelled(config: RunConfig, data: Data) -> Data:
    """Keep only the labeled training images, for a method that learns from classes."""
    if not len(data.reference):
        raise RunError(
            f"{config.method.name} needs labels, but none of the "
            f"{len(data.train)} training images of {data.spec.name} has one; "
            "use labeled data, or a method that needs no labels"
        )
    return replace(data, train=data.reference)


def _check_sizes(config: RunConfig, num_images: int) -> None:
    """Raise `RunError` if the bank or batch size does not fit the training set or the workers."""
    batch, world, bank = config.batch_size, distributed.world_size(), config.method.bank_size
    if bank > num_images:
        raise RunError(explain_large_bank(bank, num_images))
    if batch > num_images:
        raise RunError(
            "a batch cannot be larger than the training set, "
            f"got batch_size={batch}, {num_images} training images"
        )
    if batch % world:
        raise RunError(
            f"batch_size must be a multiple of the number of workers, got batch_size={batch}, "
            f"workers={world}; try {batch - batch % world or world}"
        )


def train(run: Run, on_progress: OnProgress = no_progress) -> Iterator[EpochMetrics]:
    """Train the remaining epochs of a run; yield after each epoch, when the run may be saved.

    Raises `DivergedError`.
    """
    for step in advance(run, on_progress):
        if isinstance(step, EpochMetrics):
            yield step


def advance(run: Run, on_progress: OnProgress = no_progress) -> Iterator[EpochMetrics | Stage]:
    """Train like `train`; yield also within the last epoch, whose evaluation may take hours.

    After `Stage.TRAINED`, the whole run may be saved; after `Stage.EVALUATING`, its `evaluation`.
    A run that is restored from both resumes there, with the same results. All ranks yield the same.
    """
    reset_peak(run.pixels.device)
    while run.epoch < run.config.epochs:
        if run.trained is None:
            run.trained = train_epoch(run, run.epoch, on_progress)
            if run.trained.epoch == run.config.epochs:
                yield Stage.TRAINED
        evaluation, started = run.evaluation, time.perf_counter()
        for _ in _evaluate(run, run.trained.epoch, on_progress):
            seconds = _first_rank(run, time.perf_counter() - started)
            if seconds >= SAVE_SECONDS:
                evaluation.seconds += seconds
                yield Stage.EVALUATING
                started = time.perf_counter()
        evaluation.seconds += time.perf_counter() - started
        metrics = _metrics(run, run.trained)
        run.epoch, run.trained, run.evaluation = metrics.epoch, None, Evaluation()
        run.history.append(metrics)
        yield metrics


def _first_rank(run: Run, value: float) -> float:
    """Return rank 0's value on every rank."""
    return distributed.broadcast_first(torch.tensor(value, device=run.pixels.device)).item()


def _metrics(run: Run, trained: TrainedEpoch) -> EpochMetrics:
    return EpochMetrics(
        epoch=trained.epoch,
        loss=trained.loss,
        lr=trained.lr,
        train_seconds=trained.seconds,
        eval_seconds=run.evaluation.seconds,
        images_per_second=run.steps_per_epoch * run.config.batch_size / trained.seconds,
        peak_memory_gb=_peak_memory(run),
        **trained.diagnostics,
        **run.evaluation.scores,
    )


def _peak_memory(run: Run) -> float | None:
    peak = peak_gb(run.pixels.device)
    if peak is None:
        return None
    here = torch.tensor([peak], dtype=torch.float64, device=run.pixels.device)
    return distributed.gather(here).max().item()


def begin_epoch(run: Run, epoch: int, on_progress: OnProgress = no_progress) -> None:
    """Call the method's per-epoch hook, such as clustering."""

    def everything(module: nn.Module) -> Tensor:
        encode = report_batches(partial(_encode, run, module), report)
        return extract_features(encode, run.data.train, run.pixels)

    report = partial(on_progress, "the training set", 0, 1)
    run.model.eval()
    run.method.begin_epoch(
        EpochStart(epoch, everything, generator(run.config.seed, "begin", epoch), report)
    )


def train_epoch(run: Run, epoch: int, on_progress: OnProgress) -> TrainedEpoch:
    """Train for one epoch, without evaluation."""
    started = time.perf_counter()
    config, device, steps = run.config, run.pixels.device, run.steps_per_epoch
    seed, batch_size, optim = config.seed, config.batch_size, config.optim
    peak = optim.peak(batch_size)
    begin_epoch(run, epoch, on_progress)
    order = torch.randperm(len(run.data.train), generator=generator(seed, "order", epoch))
    shuffles, own_draws = generator(seed, "shuffle", epoch), generator(seed, "method", epoch)
    parts = order[: steps * batch_size].split(batch_size)
    names = config.method.cost().views
    extras = (
        (
            plan_shuffle(
                torch.randperm(batch_size, generator=shuffles),
                distributed.rank(),
                distributed.world_size(),
            ),
            run.method.draws(own_draws),
        )
        for _ in parts
    )
    batches = training_batches(
        run.data.train,
        parts,
        [view_spec(config, view, run.pixels.size) for view in names],
        [generator(seed, "view", i, epoch) for i in range(len(names))],
        run.pixels,
        extras,
    )
    losses = torch.zeros(steps, device=device)
    seen: dict[str, list[Tensor]] = {}
    rate = 0.0
    run.model.train()
    for step, given in enumerate(batches):
        rate = rate_at(peak, epoch + step / steps, warmup=optim.warmup_epochs, epochs=config.epochs)
        for group in run.optimizer.param_groups:
            group["lr"] = peak if group["fixed"] else rate
        shuffle, draws = given.extras
        batch = Batch(
            given.views,
            given.labels,
            given.indices,
            shuffle,
            diagnose=step % DIAGNOSE_EVERY == 0,
            progress=(epoch + step / steps) / config.epochs,
            draws=draws,
        )
        if run.threads is not None:
            run.threads.adapt()
        run.optimizer.zero_grad(set_to_none=True)
        with run.autocast():
            output = run.model(batch)
        run.scaler.scale(output.loss).backward()
        if optim.clip_norm is not None:
            run.scaler.unscale_(run.optimizer)
            nn.utils.clip_grad_norm_(run.method.parameters(), optim.clip_norm)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.method.after_backward(output)
        losses[step] = output.loss.detach()
        for name, value in output.diagnostics.items():
            seen.setdefault(name, []).append(value)
        if (step + 1) % CHECK_EVERY == 0 or step + 1 == steps:
            _check_finite(losses[: step + 1], epoch)
        on_progress("train", step + 1, steps)
    # The last loss is finite, but the optimizer step after it may have produced infinite weights.
    largest = torch.stack(torch._foreach_norm(list(run.method.parameters()), math.inf))
    if not largest.isfinite().all():
        raise DivergedError("the weights became infinite", epoch + 1, steps, losses[-5:].tolist())
    # One read for all numbers of the epoch: each read waits for the device.
    averages = [distributed.mean(losses).mean()]
    averages += [distributed.mean(torch.stack(values).nanmean()) for values in seen.values()]
    loss, *numbers = torch.stack(averages).tolist()
    diagnostics = {
        name: number if math.isfinite(number) else None
        for name, number in zip(seen, numbers, strict=True)
    }
    distributed.average_batch_norm(run.method)
    return TrainedEpoch(epoch + 1, loss, rate, time.perf_counter() - started, diagnostics)


def _check_finite(losses: Tensor, epoch: int) -> None:
    """Raise `DivergedError` on every rank if any loss is not finite."""
    values = distributed.mean(losses).tolist()
    for step, value in enumerate(values):
        if not math.isfinite(value):
            what = f"the loss became {value}"
            raise DivergedError(what, epoch + 1, step + 1, values[max(0, step - 5) : step])


def _evaluate(run: Run, epoch: int, on_progress: OnProgress) -> Iterator[None]:
    """Run online kNN if it is due, and the linear probe after the last epoch.

    Updates `run.evaluation`, skips what it contains already, and yields whenever it has changed.
    """
    config, data, last = run.config.eval, run.data, epoch == run.config.epochs
    num_classes, cached = data.spec.num_classes, last and config.probe == "cached"
    progress = ("kNN", 0, 1)

    def report() -> None:
        on_progress(*progress)

    encode = report_batches(run.encode, report)
    # Each of the two passes over images runs when its features are first needed.
    reference = cache(partial(extract_own_features, encode, data.reference, run.pixels))
    test = cache(partial(extract_features, encode, data.test, run.pixels))
    test_labels = data.test.labels.to(run.pixels.device)
    scores = run.evaluation.scores
    known = len(scores)
    run.model.eval()
    if (epoch % config.knn_every == 0 or last) and "knn_top1" not in scores:
        scores["knn_top1"] = knn_top1(
            *(reference(), own_labels(data.reference, run.pixels), test(), test_labels),
            num_classes=num_classes,
            k=config.knn_k,
            temperature=config.knn_temperature,
            report=report,
        )
    if not cached:
        reference.cache_clear()  # the paper's probe does not need them for hours
    classifier = run.method.classifier
    if classifier is not None and "test_top1" not in scores:
        progress = ("test", 0, 1)
        report()
        mine = distributed.share(len(data.test))
        logits = _encode(run, classifier, test()[mine])
        right = distributed.total((logits.argmax(dim=1) == test_labels[mine]).sum())
        scores["test_top1"] = right.item() / len(data.test)
    if last and len(scores) > known:
        yield
    if last and config.probe != "none":
        done = run.evaluation.probe.epoch if run.evaluation.probe else 0
        progress = ("probe", done, config.probe_epochs)
        for state in linear_probe(
            *(encode, data.reference, run.pixels, test(), test_labels),
            num_classes=num_classes,
            epochs=config.probe_epochs,
            seed=run.config.seed,
            crop_min=run.config.augment.crop_min,
            cached=reference() if cached else None,
            nesterov=config.probe_nesterov,
            start=run.evaluation.probe,
        ):
            run.evaluation.probe = state
            progress = ("probe", state.epoch, config.probe_epochs)
            report()
            yield
        assert run.evaluation.probe is not None
        scores["probe_top1"] = run.evaluation.probe.top1
        scores["probe_best_top1"] = run.evaluation.probe.best_top1


def view_spec(config: RunConfig, view: str, size: int) -> ViewSpec:
    """Return the spec of a view by its name in `Cost.views`."""
    augment = config.augment
    kinds = {"query": augment.query, "key": augment.key, "stronger": "stronger"}
    kind = kinds["query" if view == "small" else view]
    spec = ViewSpec(kind, size, crop_min=augment.crop_min, strength=augment.strength)
    return small_view(spec) if view == "small" else spec
