"""`ascl-sweep validate`: validate sweep files."""

from rich.markup import escape

from ascl_sweep.cli.common import (
    Files,
    Overrides,
    ScaleOption,
    UntilDecided,
    load_specs,
    talk,
    warn,
)
from ascl_sweep.text import plural


def validate(
    files: Files,
    overrides: Overrides = None,
    scale: ScaleOption = "full",
    until_decided: UntilDecided = False,
) -> None:
    """Validate sweep files: list all errors at once.

    Builds a run with the first and the last value of every varied key, without training it, and
    warns of varied keys that have no effect.
    """
    from ascl_sweep.spec.effects import find_axes_without_effect

    for spec in load_specs(files, overrides or [], scale, until_decided=until_decided):
        # A searcher may propose fewer configs, the base may be a finalist, seeds may not be needed.
        at_most = "up to " if spec.domains or spec.base_may_be_extra or spec.looks else ""
        runs = f"{at_most}{plural(spec.planned_runs, 'run')}"
        talk.print(f"{escape(spec.file)}: valid, {runs}")
        for issue in find_axes_without_effect(spec):
            warn(str(issue))
