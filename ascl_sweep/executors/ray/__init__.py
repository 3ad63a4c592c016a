"""Ray executor. Only this package may import Ray."""

from ascl_sweep.runtime.executor import Executor


def make_executor(address: str | None) -> Executor:
    """Create an executor for the cluster at `address`, or for a private Ray if None.

    Raises UsageError if the address is malformed.
    """
    from ascl_sweep.executors.ray.executor import RayExecutor

    if address not in (None, "auto"):
        from ascl_sweep.executors.ray.address import parse_address

        parse_address(address)
    return RayExecutor(address)
