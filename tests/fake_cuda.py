"""Count what the host issues to a GPU, on fake CUDA tensors, which need no GPU."""

from collections import Counter
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeCuda(TorchDispatchMode):
    """Run operations on the host for real; count those on the device `cuda`, which has no values.

    A value that the host reads from the device fails, since it is unknown.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()  # without views, allocations and copies from the host
        self.copies = 0  # from pinned memory, without waiting
        self.blocking = 0
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._pinned: set[int] = set()  # storages

    def __enter__(self) -> "FakeCuda":
        self._fake.__enter__()
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._fake.__exit__(kind, error, traceback)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        device = torch.device(kwargs.get("device") or "cpu")
        if device.type == "cpu" and not any(isinstance(x, FakeTensor) for x in inputs):
            with unset_fake_temporarily():
                out = func(*args, **{k: v for k, v in kwargs.items() if k != "pin_memory"})
            if kwargs.get("pin_memory"):
                self._pinned.add(out.untyped_storage()._cdata)
            return out
        out = func(*args, **kwargs)
        if func.namespace != "aten":
            return out
        own = [x for x in inputs if not isinstance(x, FakeTensor) and x.ndim > 0]
        if own:
            pinned = all(x.untyped_storage()._cdata in self._pinned for x in own)
            waits = not (pinned and kwargs.get("non_blocking"))
            self.blocking += waits
            self.copies += not waits
        elif not func.is_view and "empty" not in func.name():
            self.calls[func.name()] += 1
        return out
