"""Errors caused by user input or the environment. Each message says how to fix the problem.

The command line reports any other exception as an internal error and exits with code 70.
"""


class AsclSweepError(Exception):
    """Base class of all errors of this package."""


class UsageError(AsclSweepError, ValueError):
    """Invalid option, argument or name."""


class StoreError(AsclSweepError, ValueError):
    """The store cannot be read or written."""


class ResourceError(AsclSweepError, RuntimeError):
    """Requested resources are unavailable."""


class ClusterError(AsclSweepError, RuntimeError):
    """The Ray cluster is unreachable or unusable."""
