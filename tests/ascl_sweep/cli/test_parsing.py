"""Help and errors of the command line show neither Python types nor pydantic's words."""

import pytest

from ascl_sweep.cli.main import OLD_NAMES, PANELS
from tests.ascl_sweep.conftest import Ask


def message(text: str) -> str:
    """The message in the panel of an error, on one line."""
    return " ".join(line.strip("│ ") for line in text.splitlines() if line.startswith("│"))


def test_help_shows_no_python_types(ask: Ask) -> None:
    names = [function.__name__ for panel in PANELS.values() for function in panel]
    for name in [*names, *OLD_NAMES]:
        text = ask(name, "--help").stdout
        for kind in ("<bool>", "<str>", "<path>", "<int", "list[", "{"):
            assert kind not in text, (name, kind)
    assert "<bool>" not in ask("--help").stdout


def test_help_names_the_value_of_each_option(ask: Ask) -> None:
    text = ask("run", "--help").stdout
    lines = {line.split()[1]: line.split()[2] for line in text.splitlines() if "│ --" in line}
    assert lines["--store"] == "TEXT" and lines["--concurrency"] == "INTEGER"
    assert lines["--scale"] == "full|laptop" and lines["--retry"] == "failed|diverged"
    assert lines["--set"] == "KEY=VALUE" and lines["--dry-run"] == "Print"
    assert lines["--executor"] == "local|ray" and lines["--log"] == "mlflow|tensorboard|wandb"
    assert "[OPTIONS] DATASET" in ask("fetch", "--help").stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run x --scale latop", "'latop' is not one of full, laptop (did you mean 'laptop'?)"),
        ("report --epoch 3", "'3' is not one of last, best"),
        ("run x --concurrency 0", "'--concurrency': must be 1 or more, got 0"),
        ("run x --concurrency a", "'--concurrency': must be a whole number, got 'a'"),
        ("report --region a", "'--region': must be a number, got 'a'"),
        ("run x --epochs 3", "No such option: --epochs; use --set epochs=3"),
        ("run x --lr=0.1", "No such option: --lr; use --set optim.lr=0.1"),
        ("train x --batch-size", "No such option: --batch-size; use --set batch_size=VALUE"),
        ("run x --yeah", "No such option: --yeah (Possible options: --yes)"),
        ("run --debug", "--debug goes before the command: ascl-sweep --debug run"),
        ("status --epochs 3", "No such option: --epochs"),
    ],
)
def test_errors_of_options_state_the_rule_or_the_fix(ask: Ask, words: str, sentence: str) -> None:
    said = ask(*words.split())
    assert said.exit_code == 2 and message(said.stderr).endswith(sentence)
