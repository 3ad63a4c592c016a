"""The training loop: `build(config)` makes a Run, `train(run)` yields one EpochMetrics per epoch.

A plain generator: whoever iterates decides when to save, report or stop. Nothing here prints.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ascl import distributed
from ascl.batches import Pixels, to_device, training_batches
from ascl.config import RunConfig, queue_too_long
from ascl.data import Data, load_data
from ascl.encoders import ResNet
from ascl.evaluate import features, knn_top1, linear_probe, own_features, own_labels
from ascl.memory import peak_gb, reset_peak
from ascl.methods import Batch, EpochStart, Method, TrainingSet, load_method
from ascl.optim import make_optimiser, rate_at
from ascl.seeding import generator, seeded_init
from ascl.views import ViewSpec, small_view

DIAGNOSE_EVERY = 16  # steps between looks at the soft labels: keeps them under 1% of the time
CHECK_EVERY = 32  # steps between looks for a non-finite loss: each costs a wait for the device
OnProgress = Callable[[str, int, int], None]
"""Told of progress within an epoch: what is done ("train", "kNN", "probe"), step, steps."""
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class EpochMetrics:
    """What an epoch came to. Accuracies are shares; None is "not measured here"."""

    epoch: int  # 1 is the first
    loss: float
    lr: float  # at the epoch's last step
    knn_top1: float | None = None
    test_top1: float | None = None  # of the method's own classifier, if it has one
    probe_top1: float | None = None  # after the probe's last epoch
    probe_best_top1: float | None = None  # at its best, chosen on what is scored
    confidence: float | None = None  # mean c of eq. 8
    effective_neighbours: float | None = None  # perplexity of the label mass on neighbours
    purity: float | None = None  # share of that mass on the same class
    neighbour_top1: float | None = None  # share of nearest neighbours of the same class
    spread: float | None = None  # 0 where all queries are one point
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    images_per_second: float = 0.0
    peak_memory_gb: float | None = None  # since this call of `train`, on the rank that took most


class Diverged(RuntimeError):
    """The loss or the weights are no longer numbers: the run is over."""

    def __init__(self, what: str, epoch: int, step: int, losses: list[float]) -> None:
        self.epoch, self.step, self.losses = epoch, step, losses
        trail = ", ".join(f"{x:.4g}" for x in losses) or "none"
        super().__init__(
            f"diverged: {what} at step {step} of epoch {epoch} (losses before: {trail}); "
            "try a lower optim.lr or a warm-up"
        )


@dataclass
class Run:
    """Everything of a run that changes while it trains, and what it trains on."""

    config: RunConfig
    data: Data
    pixels: Pixels
    method: Method
    model: nn.Module  # the same, wrapped for several ranks where there are several
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    epoch: int = 0  # epochs done
    history: list[EpochMetrics] = field(default_factory=list)

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
        """Features of the frozen encoder, for evaluation."""
        return _encoded(self, self.method.encoder, images)


def _encoded(run: Run, module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad(), run.autocast():
        out: Tensor = module(images)
    return out


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"runtime.device must be a device of this machine, got {name!r} ({reason}); "
            "try auto or cpu"
        ) from error
    return device


def build(
    config: RunConfig, *, data: Data | None = None, device: torch.device | None = None
) -> Run:
    """Make a run ready to train; `data` if it is loaded already, `device` if one is assigned."""
    device = device or pick_device(config.runtime.device)
    if data is None:
        d = config.data
        data = load_data(d.name, d.root, train_size=d.train_size, holdout=d.holdout)
    if config.method.needs_labels:
        if not len(data.reference):
            raise ValueError(
                f"{config.method.name} learns from classes and none of the "
                f"{len(data.train)} training images of {data.spec.name} has one; "
                "take labelled data, or a method that needs none"
            )
        data = replace(data, train=data.reference)
    batch, world, queue = (
        config.batch_size,
        distributed.world_size(),
        getattr(config.method, "queue_size", 0),
    )
    if queue > len(data.train):
        raise ValueError(queue_too_long(queue, len(data.train)))
    if batch > len(data.train):
        raise ValueError(
            "a batch cannot be larger than the training set, "
            f"got batch_size={batch}, {len(data.train)} training images"
        )
    if batch % world:
        raise ValueError(
            f"the batch must divide evenly over the workers, got batch_size={batch}, "
            f"workers={world}; try {batch - batch % world or world}"
        )
    train = to_device(data.train, device)
    reference = train if data.reference is data.train else to_device(data.reference, device)
    data = Data(data.spec, train, reference, to_device(data.test, device), data.scored)
    training = TrainingSet(len(data.train), data.spec.num_classes)
    with seeded_init(config.seed, "init"):
        method = load_method(config.method.name).build(config, training)
    pixels = Pixels.of(data.spec, device, channels_last=config.runtime.channels_last)
    method.to(device).to(memory_format=pixels.memory_format)
    for part in method.modules():
        if isinstance(part, ResNet):  # the online one and the copy
            part.cut_batches(config.runtime.micro_batches)
            if config.runtime.compile:
                part.compile()
    model: nn.Module = method
    if world > 1:
        # Buffers stay each rank's own: banks are equal by construction, and running statistics are
        # averaged once an epoch; sending a bank of 65,536 at every step would cost more than it.
        model = DistributedDataParallel(method, broadcast_buffers=False)
    scaler = torch.amp.GradScaler(device.type, enabled=config.runtime.precision == "fp16")
    return Run(
        config=config,
        data=data,
        pixels=pixels,
        method=method,
        model=model,
        optimiser=make_optimiser(method, config.optim, scaled=scaler.is_enabled()),
        scaler=scaler,
    )


def no_progress(phase: str, step: int, steps: int) -> None:
    """For who does not want to know."""


def train(run: Run, on_progress: OnProgress = no_progress) -> Iterator[EpochMetrics]:
    """Train what is left of a run; yields after each epoch, when it may be saved.

    Raises `Diverged`.
    """
    reset_peak(run.pixels.device)
    while run.epoch < run.config.epochs:
        started = time.perf_counter()
        loss, diagnostics, lr = _train_epoch(run, run.epoch, on_progress)
        distributed.average_batch_norm(run.method)
        trained = time.perf_counter()
        epoch = run.epoch + 1
        scores = _evaluate(run, epoch, on_progress)
        seconds = trained - started
        metrics = EpochMetrics(
            epoch=epoch,
            loss=loss,
            lr=lr,
            train_seconds=seconds,
            eval_seconds=time.perf_counter() - trained,
            images_per_second=run.steps_per_epoch * run.config.batch_size / seconds,
            peak_memory_gb=_peak_memory(run),
            **diagnostics,
            **scores,
        )
        run.epoch = epoch
        run.history.append(metrics)
        yield metrics


def _peak_memory(run: Run) -> float | None:
    peak = peak_gb(run.pixels.device)
    if peak is None:
        return None
    here = torch.tensor([peak], dtype=torch.float64, device=run.pixels.device)
    return distributed.gather(here).max().item()


def begin_epoch(run: Run, epoch: int) -> None:
    """Let the method do what it does once before an epoch."""

    def everything(module: nn.Module) -> Tensor:
        return features(partial(_encoded, run, module), run.data.train, run.pixels)

    run.model.eval()
    run.method.begin_epoch(
        EpochStart(epoch, everything, generator(run.config.seed, "begin", epoch))
    )


def _train_epoch(
    run: Run, epoch: int, on_progress: OnProgress
) -> tuple[float, dict[str, float | None], float]:
    config, device, steps = run.config, run.pixels.device, run.steps_per_epoch
    seed, batch_size, optim = config.seed, config.batch_size, config.optim
    peak = optim.peak(batch_size)
    begin_epoch(run, epoch)
    order = torch.randperm(len(run.data.train), generator=generator(seed, "order", epoch))
    shuffles, draws = generator(seed, "shuffle", epoch), generator(seed, "method", epoch)
    parts = order[: steps * batch_size].split(batch_size)
    names = config.method.cost().views
    batches = training_batches(
        run.data.train,
        parts,
        [view_spec(config, view, run.pixels.size) for view in names],
        [generator(seed, "view", i, epoch) for i in range(len(names))],
        run.pixels,
    )
    losses = torch.zeros(steps, device=device)
    seen: dict[str, list[Tensor]] = {}
    rate = 0.0
    run.model.train()
    for step, (views, labels) in enumerate(batches):
        rate = rate_at(peak, epoch + step / steps, warmup=optim.warmup_epochs, epochs=config.epochs)
        for group in run.optimiser.param_groups:
            group["lr"] = peak if group["fixed"] else rate
        batch = Batch(
            views,
            labels,
            indices=parts[step][distributed.share(batch_size)].to(device),
            shuffle=torch.randperm(batch_size, generator=shuffles),
            diagnose=step % DIAGNOSE_EVERY == 0,
            progress=(epoch + step / steps) / config.epochs,
            generator=draws,
        )
        run.optimiser.zero_grad(set_to_none=True)
        with run.autocast():
            output = run.model(batch)
        run.scaler.scale(output.loss).backward()
        if optim.clip_norm is not None:
            run.scaler.unscale_(run.optimiser)
            nn.utils.clip_grad_norm_(run.method.parameters(), optim.clip_norm)
        run.scaler.step(run.optimiser)
        run.scaler.update()
        run.method.after_backward(output)
        losses[step] = output.loss.detach()
        for name, value in output.diagnostics.items():
            seen.setdefault(name, []).append(value)
        if (step + 1) % CHECK_EVERY == 0 or step + 1 == steps:
            _check_finite(losses[: step + 1], epoch)
        on_progress("train", step + 1, steps)
    # The last step's loss was fine, but what it did to the weights shows in no loss yet.
    if not all(bool(parameter.isfinite().all()) for parameter in run.method.parameters()):
        raise Diverged("the weights became infinite", epoch + 1, steps, losses[-5:].tolist())
    diagnostics = {
        name: _number(distributed.mean(torch.stack(values).nanmean()))
        for name, values in seen.items()
    }
    return distributed.mean(losses).mean().item(), diagnostics, rate


def _check_finite(losses: Tensor, epoch: int) -> None:
    """Raise `Diverged` at the first loss that is not a number, on every rank alike."""
    losses = distributed.mean(losses)
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        step = int(bad[0])
        values = losses.tolist()
        what = f"the loss became {values[step]}"
        raise Diverged(what, epoch + 1, step + 1, values[max(0, step - 5) : step])


def _number(value: Tensor) -> float | None:
    number = value.item()
    return number if math.isfinite(number) else None


def _evaluate(run: Run, epoch: int, on_progress: OnProgress) -> dict[str, float]:
    """Online kNN when it is due, and the probe after the last epoch."""
    config, data, last = run.config.eval, run.data, epoch == run.config.epochs
    num_classes = data.spec.num_classes
    scores: dict[str, float] = {}
    run.model.eval()
    if epoch % config.knn_every == 0 or last:
        on_progress("kNN", 0, 1)
        scores["knn_top1"] = knn_top1(
            own_features(run.encode, data.reference, run.pixels),
            own_labels(data.reference, run.pixels),
            features(run.encode, data.test, run.pixels),
            data.test.labels.to(run.pixels.device),
            num_classes=num_classes,
            k=config.knn_k,
            temperature=config.knn_temperature,
        )
    classifier = run.method.classifier
    if classifier is not None:
        on_progress("test", 0, 1)
        logits = features(partial(_encoded, run, classifier), data.test, run.pixels)
        right = logits.argmax(dim=1) == data.test.labels.to(run.pixels.device)
        scores["test_top1"] = right.sum().item() / len(right)
    if last and config.probe != "none":
        scores["probe_top1"], scores["probe_best_top1"] = linear_probe(
            run.encode,
            data.reference,
            data.test,
            run.pixels,
            num_classes=num_classes,
            epochs=config.probe_epochs,
            seed=run.config.seed,
            crop_min=run.config.augment.crop_min if config.probe == "paper" else None,
            nesterov=config.probe_nesterov,
            on_epoch=partial(on_progress, "probe"),
        )
    return scores


def view_spec(config: RunConfig, view: str, size: int) -> ViewSpec:
    """The view that a method calls by this name, see `Cost.views`."""
    augment = config.augment
    kinds = {"query": augment.query, "key": augment.key, "stronger": "stronger"}
    kind = kinds["query" if view == "small" else view]
    spec = ViewSpec(kind, size, crop_min=augment.crop_min, strength=augment.strength)
    return small_view(spec) if view == "small" else spec
