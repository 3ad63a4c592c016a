"""A new scheduler or searcher is one file; no other file changes."""

import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

SCHEDULER = """
from typing import ClassVar
from ascl_sweep.search.schedulers.base import Moment, SchedulerConfig

class ThresholdConfig(SchedulerConfig):
    COMPARED: ClassVar = {"below 10%": "grace=1,least=0.1"}
    grace: Moment = 0.5
    least: float = 0.2

    def build(self, epochs): return Threshold(self.grace, self.least)
    def stop_epochs(self, epochs): return tuple(range(self.grace, epochs))
    def rungs(self, epochs): return (self.grace,)
    def describe(self): return f"at least {self.least:g} from epoch {self.grace}"
    def warnings(self, runs): yield f"{runs} runs may all be stopped"

class Threshold:
    def __init__(self, grace, least): self.grace, self.least, self.rungs = grace, least, {}
    def tell(self, run_id, epoch, value):
        return "too low" if epoch >= self.grace and value < self.least else ""

Config = ThresholdConfig
"""
SEARCHER = """
from ascl_sweep.search.searchers.base import Proposal
from ascl_sweep.spec.domains import DomainSpace

class CornersSpace(DomainSpace):
    last: bool = False

class Corners:
    adaptive = True
    def __init__(self, spec): self.spec, self.asked, self.told = spec, 0, []
    def ask(self):
        if self.asked == 2: return None
        self.asked += 1
        end = -1 if self.spec.space.form.last else 0
        changes = {k: d.ends[end] for k, d in self.spec.domains.items()}
        return Proposal(self.asked, {**changes, "optim.lr": 0.1 * self.asked})
    def tell(self, ticket, outcome): self.told.append((ticket, outcome.state))
    def add(self, outcome): pass

Config = CornersSpace
def build(spec, known): return Corners(spec)
"""
USE = '''
import sys
import ascl_sweep.search.schedulers, ascl_sweep.search.searchers
ascl_sweep.search.schedulers.__path__.append(sys.argv[1])
ascl_sweep.search.searchers.__path__.append(sys.argv[2])

from ascl_sweep.contracts import RunState
from ascl_sweep.search.plan import make_plan
from ascl_sweep.search.simulate import parse_rule, standard_rules
from ascl_sweep.search.study import Study
from ascl_sweep.spec.summary import SweepSummary, summarize_sweep
from ascl_sweep.spec.sweep import json_schema, parse_sweep
from tests.ascl_sweep.search.test_study import BASE

domains = "{optim.lr: {uniform: [0.1, 0.3]}, batch_size: {choice: [16, 32]}}"
text = BASE + f"space: {{corners: {{last: true, domains: {domains}}}}}" + """
stop: {threshold: {grace: 2, least: 0.3}, audit: 0}
budget: {trials: 9}
"""
spec = parse_sweep(text, file="it.yaml")
definitions = json_schema()["$defs"]
assert "threshold" in definitions["Stop"]["properties"]
assert "corners" in definitions["Space"]["properties"]
assert "optim.lr" in definitions["CornersSpace"]["properties"]["domains"]["propertyNames"]["enum"]

assert "9 runs may all be stopped" in make_plan([Study(spec, {}, {})], {}).sweeps[0].warnings
assert parse_rule("threshold:least=0.5", 10).describe() == "at least 0.5 from epoch 5"
assert standard_rules(10)["below 10%"] is not None
kept = SweepSummary.of_json(summarize_sweep(spec).to_json())
assert kept.stop.describe() == "at least 0.3 from epoch 2" and kept.stop.rungs(9) == (2,)

study = Study(spec, {}, {})
base, first, second = (study.next_run() for _ in range(3))
assert base.run_id == spec.run_id({})
study.on_end(base.run_id, RunState.DONE)
assert [run.config.batch_size for run in (first, second)] == [32, 32]
assert study.next_run() is None and not study.finished
assert not study.on_epoch(first.run_id, 1, 0.1, measured=True).stop
assert study.on_epoch(first.run_id, 2, 0.1, measured=True).because == "too low"
study.on_end(first.run_id, RunState.STOPPED)
study.on_end(second.run_id, RunState.DONE)
assert study.finished
'''


def test_a_scheduler_and_a_searcher_are_added_with_one_file_each(tmp_path: Path) -> None:
    for kind, name, code in (("s", "threshold", SCHEDULER), ("t", "corners", SEARCHER)):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"{name}.py").write_text(code)
    words = [sys.executable, "-c", USE, str(tmp_path / "s"), str(tmp_path / "t")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
