"""Feature files and t-SNE figures: `ascl-sweep embed` and `tsne`."""

import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from ascl.checkpoint import train_in
from ascl.eval.features import embed
from ascl.train import build
from ascl_sweep.cli import app
from ascl_sweep.contracts import RunRow
from ascl_sweep.report.figures.tsne import (
    CLASSES,
    POINTS,
    Embedded,
    balanced,
    read,
    tsne_figure,
    write,
)
from ascl_sweep.store.store import Store
from tests.conftest import tiny
from tests.stores import sweep

Ask = Callable[..., Result]


def a_run(run_id: str = "a1", label: str = "ASCL", images: int = 60, classes: int = 3) -> Embedded:
    """Features with one cluster per class."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % classes
    features = 5 * np.eye(classes, 8)[labels] + rng.normal(size=(images, 8))
    return Embedded(run_id, label, "test", features.astype(np.float32), labels)


# ---------------------------------------------------------------- the file


def test_features_read_back_as_they_were_written(tmp_path: Path) -> None:
    run = a_run()
    write(run, tmp_path / "new" / "a1.npz")
    found = read(tmp_path / "new" / "a1.npz")
    assert (found.run_id, found.label, found.split) == ("a1", "ASCL", "test")
    assert found.features.dtype == np.float32 and np.array_equal(found.features, run.features)
    assert np.array_equal(found.labels, run.labels)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a1.npz"]


@pytest.mark.parametrize("content", [b"", b"rubbish", pickle.dumps({"features": 1})])
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz is damaged or not a feature file; create"):
        read(tmp_path / "a.npz")


def test_a_truncated_or_incomplete_file_is_named(tmp_path: Path) -> None:
    write(a_run(), tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-200])
    np.savez(tmp_path / "c.npz", features=np.zeros((2, 2)))
    np.savez(tmp_path / "d.npz", allow_pickle=True, format=np.array({"an": "object"}, object))
    for name in "bcd":
        with pytest.raises(ValueError, match="damaged or not a feature file"):
            read(tmp_path / f"{name}.npz")


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write(a_run(), tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as found:
        np.savez(tmp_path / "b.npz", **{**found, "format": np.int64(9)})
    with pytest.raises(ValueError, match="has format 9, this version reads 1; upgrade"):
        read(tmp_path / "b.npz")


# ---------------------------------------------------------------- the picture


def test_equal_features_give_an_equal_figure_with_a_panel_for_each_run() -> None:
    runs = [a_run("a1", "MoCo"), a_run("b2", "ASCL")]
    figure = tsne_figure(runs)
    assert figure == tsne_figure(runs)
    assert [panel.title for panel in figure.panels] == ["MoCo", "ASCL"]
    assert [s.label for s in figure.panels[0].series] == ["class 0", "class 1", "class 2"]
    assert all(len(series.x) == 20 for series in figure.panels[0].series)
    assert "60 test images" in figure.caption


def test_heaps_stay_heaps() -> None:
    (panel,) = tsne_figure([a_run(images=90)]).panels
    places = [np.array([series.x, series.y], float).T for series in panel.series]
    centres = np.array([place.mean(axis=0) for place in places])
    for i, place in enumerate(places):
        distances = np.linalg.norm(place[:, None] - centres, axis=2)
        assert (distances.argmin(axis=1) == i).mean() > 0.9


def test_runs_with_equal_names_are_distinguished_by_their_ids() -> None:
    titles = [panel.title for panel in tsne_figure([a_run("a1"), a_run("b2")]).panels]
    assert titles == ["ASCL (a1)", "ASCL (b2)"]


@pytest.mark.parametrize(
    ("counts", "each"), [((50, 9, 30), 9), ((5000, 5000), POINTS // 2), ((30,) * 15, 30)]
)
def test_classes_are_balanced_and_not_too_many(counts: tuple[int, ...], each: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    labels = np.concatenate((np.full(7, -1), np.random.default_rng(0).permutation(labels)))
    chosen = balanced(labels)
    found = Counter(labels[chosen].tolist())
    assert set(found) == set(range(min(len(counts), CLASSES)))
    assert set(found.values()) == {each} and len(set(chosen.tolist())) == len(chosen)


def test_what_cannot_be_drawn_is_refused() -> None:
    broken = a_run()
    broken.features[3, 3] = np.nan
    with pytest.raises(ValueError, match="a1 are not finite; the run may have diverged"):
        tsne_figure([broken])
    with pytest.raises(ValueError, match="t-SNE needs at least 4 labeled images, got 3 of a1"):
        tsne_figure([a_run(images=3)])


# ---------------------------------------------------------------- the commands


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two trained runs and one run in each state without a checkpoint."""
    folder = tmp_path_factory.mktemp("store")
    config = tiny(epochs=1, data={"train_size": 200})
    rows = []
    for name in ("moco", "ascl"):
        run = build(tiny(name, epochs=1, data={"train_size": 200}))
        run_id = run.config.identity()
        for _ in train_in(run, Path(Store(folder).work(run_id))):
            pass
        values = run.config.flat_values()
        rows.append(RunRow(run_id, ("it", "both"), values, "final", "full", "done"))
    for state in ("done", "stopped", "running"):
        values = config.flat_values()
        rows.append(RunRow(f"zz-{state}", ("it",), values, "final", "full", state))
    with Store(folder).writer() as writer:
        writer.put_sweep(sweep("both", order=(rows[1].run_id, rows[0].run_id)))
        writer.put_sweep(sweep("waiting"))
        for row in rows:
            writer.put_run(row)
    return folder


def trained(store: Path) -> dict[str, str]:
    """Return run ids by relabeling."""
    rows = Store(store).runs().values()
    return {str(r.config["method.relabel"]): r.run_id for r in rows if "zz" not in r.run_id}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_embed_writes_the_features_of_runs_by_the_start_of_their_ids(
    ask: Ask, store: Path, tmp_path: Path
) -> None:
    ids = trained(store)
    said = ask("embed", ids["ascl"][:6], ids["none"], "--store", store)
    assert said.exit_code == 0, said.stderr
    assert said.stdout == ""
    for name, label in (("ascl", "ASCL"), ("none", "MoCo")):
        found = read(tmp_path / "features" / f"{ids[name]}.npz")
        checkpoint = store / "work" / ids[name] / "checkpoint.pt"
        assert np.array_equal(found.features, embed(checkpoint).values.numpy())
        assert (found.run_id, found.label, found.split) == (ids[name], label, "holdout")


def test_embed_takes_a_folder_and_names_a_file(ask: Ask, store: Path, tmp_path: Path) -> None:
    folder = store / "work" / trained(store)["ascl"]
    said = ask("embed", folder, "--split", "train", "--out", "new/x.npz")
    assert said.exit_code == 0, said.stderr
    assert read(tmp_path / "new" / "x.npz").split == "train"
    assert len(read(tmp_path / "new" / "x.npz").labels) == 160


def test_a_sweep_stands_for_its_complete_runs_in_the_order_of_its_file(
    ask: Ask, store: Path
) -> None:
    said = ask("embed", "both", "--store", store)
    assert said.exit_code == 0, said.stderr
    assert re.findall(r"(\w+)\.npz", said.stderr) == [trained(store)[k] for k in ("ascl", "none")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tsne", "waiting", "--out", "x.svg"], "no run of waiting has finished yet; resume"),
        (["embed", "nosuchrun"], "no run in {store} has an id that begins with 'nosuchrun'; known"),
        (["embed", "zz-stoped"], "similar ids: zz-stopped"),
        (["embed", "z-done"], "has an id that begins with 'z-done'; similar ids: zz-done"),
        (["embed", "zz"], "is the start of several run ids: zz-done, zz-running"),
        (["embed", "zz-done"], "was deleted (e.g. by `ascl-sweep gc --done`); train"),
        (["embed", "zz-stopped"], "files of stopped runs are not kept; choose a finished run"),
        (["embed", "zz-running"], "the run has not finished an epoch yet"),
        (["embed", "a", "b", "--out", "x.npz"], "--out must be a folder for several runs"),
        (["tsne", "zz-done", "--out", "x.pdf"], "--out must end in .svg or .png, got x.pdf"),
        (["tsne", "no.npz", "--out", "x.svg"], "there is no file no.npz; create it with"),
    ],
)  # fmt: skip
def test_what_cannot_be_embedded_is_refused(
    ask: Ask, store: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    said = ask(*words, "--store", store)
    assert said.exit_code == 2, said.stderr
    assert sentence.format(store=store) in said.stderr
    assert "Traceback" not in said.stderr and said.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_an_empty_store_is_refused(ask: Ask) -> None:
    said = ask("embed", "a1")
    assert said.exit_code == 2 and "no run in results; start runs with" in said.stderr


def test_a_damaged_checkpoint_is_refused(ask: Ask, store: Path, tmp_path: Path) -> None:
    whole = (store / "work" / trained(store)["ascl"] / "checkpoint.pt").read_bytes()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "checkpoint.pt").write_bytes(whole[:-300])
    said = ask("embed", "bad")
    assert said.exit_code == 2 and "checkpoint.pt is damaged or not a checkpoint" in said.stderr
    assert not (tmp_path / "features").exists()


def test_an_error_about_a_remote_store_names_the_fix(
    ask: Ask, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "work", lambda self, run_id: f"s3://bucket/work/{run_id}")
    said = ask("embed", "zz-done", "--store", store)
    assert said.exit_code == 2
    assert "remote storage (s3://bucket/work/zz-done)" in said.stderr and "copy that" in said.stderr


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_tsne_draws_runs_and_files_side_by_side(
    ask: Ask, store: Path, tmp_path: Path, ending: str
) -> None:
    ids = trained(store)
    assert ask("embed", ids["none"], "--store", store, "--out", "moco.npz").exit_code == 0
    said = ask("tsne", ids["ascl"], "moco.npz", "--store", store, "--out", f"new/it.{ending}")
    assert said.exit_code == 0, said.stderr
    picture = tmp_path / "new" / f"it.{ending}"
    if ending == "svg":
        text = ["".join(node.itertext()) for node in ElementTree.parse(picture).iter()]
        assert "ASCL" in text and "MoCo" in text and "class 0" in text
    else:
        assert Image.open(picture).width == 1050
