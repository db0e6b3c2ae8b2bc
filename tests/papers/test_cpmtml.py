"""The tables of CP-mtML, from computations to pages, on a small set of random descriptors."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ml.embedders.cpmtml import Cpmtml
from ml.evaluation.report import rank_protocol
from ml.evaluation.retrieval import average_precisions, n_call
from ml.types import Rows
from papers.cpmtml import chapter as cpmtml
from papers.cpmtml import convergence, identity, learners, speed
from papers.cpmtml import fits as fitting
from papers.cpmtml.age import split
from papers.cpmtml.fits import CpmtmlFits
from papers.cpmtml.learners import CPMTML_FROM_NEXT, CPMTML_LEARNERS, STML_LEARNER, Setting, lines
from papers.cpmtml.printed_figures import gap, printed
from papers.cpmtml.row_builder import RowBuilder
from papers.cpmtml.tasks import AGE, MOOD, TABLE_5_PAIRS, make_training_set
from papers.harness import page_writer, runner
from papers.harness.photos import Photos
from papers.harness.result_store import ResultStore
from papers.harness.run_context import RunContext
from papers.harness.table_types import Chapter, Row, Scope, Table
from papers.harness.verdicts import get_verdict

PEOPLE, SHOTS, AGES, STRANGERS = 60, 8, 300, 40
MOODS = ("neutral", "happiness", "sadness", "")
WIDE = {"lbp": 300, "mobilefacenet": 128}


@dataclass(frozen=True)
class NoisyPhotos(Photos):
    """Random rows; some numbers depend on the person, on the age and on the expression of the photo."""

    def names(self, photo_set: str) -> list[str]:
        if photo_set == "lfw":
            return [f"P{p:02d}/P{p:02d}_{s + 1:04d}.jpg" for p in range(PEOPLE) for s in range(SHOTS)]
        kinds = {"age": [str(18 + i % 20) for i in range(AGES)], "expression": list(MOODS[:3]) * 50}
        return [f"{kind}/{i}.jpg" for i, kind in enumerate(kinds.get(photo_set, ["d"] * STRANGERS))]

    def has(self, photo_set: str) -> bool:
        return True

    def blocks(self, features: str) -> tuple[int, ...]:
        return (WIDE[features],)

    def rows(self, photo_set: str, features: str) -> Rows:
        _, kind = np.unique([n.split("/")[0] for n in self.names(photo_set)], return_inverse=True)
        draw = np.random.default_rng(len(photo_set))
        rows = draw.normal(size=(len(kind), WIDE[features]))
        rows[:, :40] += draw.normal(size=(kind.max() + 1, 40))[kind]
        return rows.astype(np.float32)


def write(data: Path) -> Path:
    lists = data / "lfw-protocol"
    lists.mkdir(parents=True)
    names = NoisyPhotos(data, data).names("lfw")
    for number in range(2):
        (lists / f"queries-{number}.txt").write_text("\n".join(names[number::SHOTS]) + "\n")
    expressions = [
        f"{name.split('/')[1]},{MOODS[i % len(MOODS)]}" for i, name in enumerate(names) if MOODS[i % len(MOODS)]
    ]
    (lists / "lfw-expression.csv").write_text("\n".join(["image,emotion", *expressions]) + "\n")
    return data


def world(data: Path, scope: Scope) -> RunContext:
    return RunContext(NoisyPhotos(data, data.parent / "cache"), ResultStore(data.parent / "cache" / "results"), scope)


@dataclass(frozen=True)
class FinishedRun:
    context: RunContext
    chapter: Chapter
    tables: dict[str, Table]

    def row(self, table: str, name: str) -> Row:
        return next(r for r in self.tables[table].rows if r.name == name)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """The whole chapter, two draws of some and one of the rest, with a few steps each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "STEPS", 4)
        patch.setattr(fitting, "RATES", (0.12,))
        patch.setattr(identity, "DIMS", (32, 64))
        patch.setattr(convergence, "STEPS", 40)
        patch.setattr(speed, "STEPS", 10)
        context = world(write(tmp_path_factory.mktemp("numbers") / "data"), Scope(2, 1))
        chapter = cpmtml.chapter(context)
        runner.print_cost([chapter], context.store)
        runner.compute_missing([chapter], context.store)
        yield FinishedRun(context, chapter, {t.name: t for t in chapter.tables()})


def test_every_table_is_written_and_readable(done: FinishedRun, tmp_path: Path) -> None:
    page = page_writer.write_chapter(
        tmp_path, done.chapter.name, done.chapter.title, "likeness", [*done.tables.values()], done.context.store
    )
    content = json.loads((tmp_path / "cp-mtml.json").read_text())
    assert [t["name"] for t in content["tables"]] == [
        "table-1", "tables-2-6", "tables-2-6-distractors", "table-3", "table-3-distractors", "table-4-lbp",
        "table-4-lbp-distractors", "table-4-cnn", "table-4-cnn-distractors", "table-5", "table-5-distractors",
        "differences", "figure-3", "figure-4", "timing",
    ]  # fmt: skip
    rows = {t["name"]: [r["name"] for r in t["rows"]] for t in content["tables"]}
    assert "stML, 128 numbers per face" in rows["tables-2-6"]
    assert "mtLMNN" in rows["tables-2-6"]
    assert "MLBoost" in rows["table-5"]
    assert all(f.name in page.read_text() for f in tmp_path.glob("*.svg"))
    assert len(list(tmp_path.glob("*.svg"))) == 2


def test_the_rate_with_the_best_result_on_held_out_people_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "STEPS", 10)
    context = world(write(tmp_path / "data"), Scope(2, 1))
    fits, setting = CpmtmlFits(context), Setting(STML_LEARNER, "lbp", 32)
    assert fits.method(setting) is None
    assert len(fits.guessed(setting)) == 2
    records = [context.store.do(computation).record for computation in fits.choices(setting)]
    best = max(records, key=lambda record: record["held_out"])
    method = fits.method(setting)
    assert method is not None
    assert (method.options["rate"], method.options["steps"]) == (best["rate"], best["steps"])
    more = fits.method(Setting(STML_LEARNER, "lbp", 32, TABLE_5_PAIRS))
    assert more is not None
    assert more.options["steps"] == best["steps"] * 5 // 2
    assert fits.choices(setting)[0].key == fits.choices(Setting(STML_LEARNER, "lbp", 128))[0].key


def fitted(context: RunContext, setting: Setting) -> tuple[Cpmtml, Rows]:
    """Compute the result of the chapter's first draw, step by step."""
    method = CpmtmlFits(context).method(setting)
    assert method is not None
    train = make_training_set(context, setting.features, setting.learner.aux)
    assert train is not None
    embedder = Cpmtml.from_options(dim=setting.dim, **method.options).fit(train(context.protocol("queries-0")))
    return embedder, context.photos.rows("lfw", setting.features)


def test_a_row_equals_the_figures_of_its_fit(done: FinishedRun) -> None:
    setting = Setting(CPMTML_LEARNERS[2], "lbp", 64)
    embedder, rows = fitted(done.context, setting)
    ranked = rank_protocol(embedder.embed(rows), done.context.protocol("queries-0"))
    row = done.row("tables-2-6", setting.title)
    assert row.figures["mAP"].draws == 1
    assert row.figures["mAP"].value == pytest.approx(100 * average_precisions(ranked).mean())
    assert row.figures["1@5"].value == pytest.approx(100 * n_call(ranked, 5).mean())
    crowd = done.row("tables-2-6-distractors", setting.title)
    assert crowd.figures["mAP"].value <= row.figures["mAP"].value


def test_each_projection_is_ranked_by_its_own_numbers(done: FinishedRun) -> None:
    setting = Setting(CPMTML_LEARNERS[2], "lbp", 64)
    embedder, rows = fitted(done.context, setting)
    own, other = (embedder.embed(rows, task)[:, 64:] for task in ("identity", setting.learner.aux))
    for part, z in (("L1", own), ("L2", other)):
        ranked = rank_protocol(z, done.context.protocol("queries-0"))
        figure = done.row("table-1", f"{part}, {setting.learner.title}").figures["1@10"]
        assert figure.value == pytest.approx(100 * n_call(ranked, 10).mean())


def test_a_difference_is_paired_over_the_same_queries(done: FinishedRun) -> None:
    reader = RowBuilder(CpmtmlFits(done.context))
    a, b = Setting(CPMTML_FROM_NEXT[1], "lbp", 64), Setting(STML_LEARNER, "lbp", 128)
    name = f"LBP, d = 64: {CPMTML_FROM_NEXT[1].title} less stML of the same stored size (d = 128)"
    row = done.row("differences", name)
    rows = [done.row("tables-2-6", s.title).figures["mAP"].value for s in (a, b)]
    assert row.figures["mAP"].value == pytest.approx(rows[0] - rows[1])
    assert row.figures["mAP"].draws == 2
    assert row.paper == {"1@10": pytest.approx(63.4 - 63.6)}
    unclear = row.figures["1@10"].low <= 0 <= row.figures["1@10"].high
    assert get_verdict(row) in (
        ("no difference shown", "nothing learned") if unclear else ("altered", "nothing learned")
    )
    assert reader.compare_settings(a, a).difference.value == 0


def test_no_face_of_an_age_is_learned_from_and_searched_for(done: FinishedRun) -> None:
    names = done.context.photos.names("age")
    side = split(names, 1)
    assert not set(side.training) & {*side.queries, *side.gallery}
    assert len(side.training) + len(side.queries) + len(side.gallery) == len(names)
    ages = [int(names[q].split("/")[0]) for q in side.queries]
    assert ages == sorted(set(ages)) or len(set(ages)) == len(ages)
    assert done.row("figure-3", f"LBP, {STML_LEARNER.name}, 64 numbers per face").figures["1@10"].draws == 2


def test_pairs_of_the_second_task_come_only_from_the_training_side(done: FinishedRun) -> None:
    protocol = done.context.protocol("queries-0")
    for aux in (MOOD, AGE):
        train = make_training_set(done.context, "lbp", aux)
        assert train is not None
        made = train(protocol)
        main, second = made.tasks
        assert [main.task, second.task] == ["identity", aux]
        assert len(main.faces) == len(protocol.training) == PEOPLE * SHOTS - len(protocol.queries)
        known = ~np.isnan(second.values)
        assert known.mean() == (1.0 if aux == AGE else pytest.approx(0.75, abs=0.05))
        rows = done.context.photos.rows("lfw" if aux == MOOD else "age", "lbp")
        at = protocol.training[second.faces[:5]] if aux == MOOD else np.arange(5)
        np.testing.assert_array_equal(made.rows[second.faces[:5]], rows[at])


def test_stml_of_twice_the_numbers_stands_beside_cp_mtml() -> None:
    for features in ("lbp", "mobilefacenet"):
        for dim in (32, 64, 128):
            settings = lines(features, dim, every=True)
            assert Setting(CPMTML_LEARNERS[0], features, dim) in settings
            assert (Setting(STML_LEARNER, features, 2 * dim) in settings) == (
                2 * dim <= (9860 if features == "lbp" else 128)
            )


def test_the_paper_is_quoted_where_it_prints_something() -> None:
    assert printed("lbp", ("CP-mtML", "expression"), 64)["1@10"] == 63.6
    assert printed("lbp", ("CP-mtML", "expression"), 32, crowd=True) == {"1@10": 37.6}
    assert printed("lbp", ("stML", ""), 256) == {}
    assert gap("lbp", ("CP-mtML", "age"), 32, 64) == {"1@10": -8.0}
    assert gap("lbp", ("CP-mtML", "age"), 128, 256) == {}


def test_a_worse_row_states_its_cause_and_rows_with_distractors_are_not_compared(done: FinishedRun) -> None:
    rows = [(name, row) for name, table in done.tables.items() for row in table.rows]
    assert all(row.cause for _, row in rows if get_verdict(row) == "worse")
    among = [row for name, row in rows if name.endswith("distractors") and row.paper]
    assert {get_verdict(row) for row in among} <= {"not possible here", "nothing learned"}
    assert not {get_verdict(row) for _, row in rows if "L0 from the next" in row.name} & {
        "better",
        "reproduced",
        "worse",
    }


def test_a_quick_run_has_its_tables_without_choosing_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "QUICK_STEPS", 2)
    monkeypatch.setattr(convergence, "QUICK_STEPS", 20)
    monkeypatch.setattr(speed, "QUICK", 5)
    context = world(write(tmp_path / "data"), Scope(1, 1, True))
    chapter = cpmtml.chapter(context)
    assert not chapter.guessed()
    assert len(chapter.computations()) < 30
    runner.compute_missing([chapter], context.store)
    assert {"table-1", "tables-2-6", "differences", "figure-3", "timing"} <= {t.name for t in chapter.tables()}
