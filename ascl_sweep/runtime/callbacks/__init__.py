"""Callbacks: they receive the events of a sweep. Loggers send copies of the results elsewhere."""

from pkgutil import iter_modules


def logger_names() -> list[str]:
    """Return the values that `--log` accepts."""
    others = {"base", "console", "event_log", "logger"}
    return sorted(module.name for module in iter_modules(__path__) if module.name not in others)
