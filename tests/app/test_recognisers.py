"""Recognisers: the list, the files in the home, and the commands that put them there."""

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli.main import app
from app.cli.recognisers import commands as commands
from app.config import Settings
from app.errors import Conflict, Invalid
from app.storage.recognisers import catalogue, manifests
from app.storage.recognisers.builtin_models import build_model
from app.storage.recognisers.component_files import find_recipe_files
from ml.model import Recipe, load_model, save_model
from ml.types import Spec
from tests.ml.learned_onnx import DIM, learned_onnx, random_onnx
from tests.ml.tiny_cnn import tiny_cnn
from tests.ml.tiny_onnx import tiny_onnx


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def likeness(home: Path, *words: str | Path) -> Result:
    env = {name: None for name in os.environ if name.startswith("LIKENESS_")} | {"LIKENESS_HOME": str(home)}
    return CliRunner().invoke(app, [str(word) for word in words], env=env)


def add(home: Path, file: Path, *words: str) -> Result:
    return likeness(home, "recognisers", "add", file, "--yes", *words)


def listed(home: Path) -> dict[str, catalogue.Recogniser]:
    return {entry.name: entry for entry in catalogue.list_recognisers(Settings(home=home))}


def test_one_command_registers_a_recogniser_with_its_hash_and_its_separation(home: Path, tmp_path: Path) -> None:
    model = learned_onnx(tmp_path / "theirs.onnx", batch=1)
    result = add(home, model)
    assert result.exit_code == 0, result.output
    assert "112 x 112 rgb (nchw), 1 at a time, (pixel - 127.5) / 127.5; gives 24 numbers (embedding)" in result.output
    assert "likeness recognisers use theirs --collection C" in result.output
    says = json.loads((home / "recognisers" / "theirs" / "manifest.json").read_text())
    assert says["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    assert says["licence"].startswith("unknown")
    entry = listed(home)["theirs"]
    assert (entry.dim, entry.size, entry.source) == (DIM, model.stat().st_size, "theirs.onnx")
    assert entry.spec is not None
    assert entry.accuracy is not None
    assert entry.accuracy.auc is not None
    assert entry.accuracy.auc > 0.93
    assert f"{entry.accuracy.auc:.1%}"[:3] in result.output
    model.unlink()
    assert catalogue.find_recogniser(Settings(home=home), "theirs").spec is not None, "the home has a copy of its own"


def test_options_supply_what_the_file_does_not_state(home: Path, tmp_path: Path) -> None:
    model = learned_onnx(tmp_path / "theirs.onnx", second_output=True, open_size=True)
    words = "--name a --output embedding --size 112x112 --mean 127.5,127.5,127.5 --scale 127 --colour bgr --licence MIT"
    result = add(home, model, *words.split(), "--source", "a friend", "--no-normalise")
    assert result.exit_code == 0, result.output
    says = json.loads((home / "recognisers" / "a" / "manifest.json").read_text())
    assert (says["output"], says["dim"], says["size"]) == ("embedding", DIM, [112, 112])
    assert (says["mean"], says["scale"], says["colour"]) == ([127.5] * 3, [127.0] * 3, "bgr")
    assert (says["licence"], says["normalise"], listed(home)["a"].source) == ("MIT", False, "a friend")


def test_preprocessing_is_detected_and_a_wrong_one_is_refused_with_the_right_one(home: Path, tmp_path: Path) -> None:
    model = learned_onnx(tmp_path / "theirs.onnx")
    wrong = add(home, model, "--mean", "0", "--scale", "1")
    assert wrong.exit_code == 1
    assert "With --mean 127.5 --scale 127.5 it is 9" in wrong.output
    assert "theirs" not in listed(home)
    assert list((home / "recognisers").iterdir()) == [], "nothing half made stays"


@pytest.mark.parametrize("make", [random_onnx, lambda path: tiny_onnx(path.parent).with_suffix(".onnx")])
def test_a_recogniser_that_cannot_separate_people_is_refused_unless_forced(
    make: Any, home: Path, tmp_path: Path
) -> None:
    model = make(tmp_path / "random.onnx")
    refused = add(home, model, "--name", "a")
    assert refused.exit_code == 1
    assert "no face recogniser" in refused.output
    assert "a" not in listed(home)
    forced = add(home, model, "--name", "a", "--force")
    assert forced.exit_code == 0, forced.output
    rated = listed(home)["a"].accuracy
    assert rated is not None
    assert rated.auc is not None
    assert rated.auc < 0.85


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--name", "lbp"], "taken by a recogniser that Likeness knows"),
        (["--name", "sface"], "taken by a recogniser that Likeness knows"),
        (["--name", "../a"], "is no name"),
        (["--name", ".a"], "is no name"),
        (["--output", "code"], "has no output 'code'"),
        (["--mean", "a"], "a number, or three"),
        (["--mean", "1,2"], "a number, or three"),
        (["--scale", "0", "--mean", "0"], "scale must not be 0"),
        (["--colour", "grey"], "rgb or bgr"),
        (["--layout", "chw"], "nchw or nhwc"),
        (["--size", "112"], "HEIGHTxWIDTH"),
        (["--size", "96x96"], "112 x 112, as the file says"),
    ],
)
def test_invalid_options_are_refused_with_advice(words: list[str], reason: str, home: Path, tmp_path: Path) -> None:
    result = add(home, learned_onnx(tmp_path / "theirs.onnx"), *words)
    assert result.exit_code == 1
    assert reason in result.output
    assert list(listed(home)) == ["dlib_resnet", "sface", "lbp"]


def test_a_name_cannot_be_reused_for_another_recogniser(home: Path, tmp_path: Path) -> None:
    assert add(home, learned_onnx(tmp_path / "a.onnx")).exit_code == 0
    assert add(home, tmp_path / "a.onnx").exit_code == 0, "the same again changes nothing"
    other = add(home, learned_onnx(tmp_path / "b.onnx", flip=-1.0), "--name", "a")
    assert other.exit_code == 1
    assert "another recogniser is registered as a" in other.output


def test_a_missing_home_is_not_created(tmp_path: Path) -> None:
    result = add(tmp_path / "nowhere", learned_onnx(tmp_path / "a.onnx"))
    assert result.exit_code == 1
    assert "set LIKENESS_HOME" in result.output.replace("\n", " ")
    assert not (tmp_path / "nowhere").exists()


def test_without_a_terminal_the_command_requires_options_or_yes(home: Path, tmp_path: Path) -> None:
    result = likeness(home, "recognisers", "add", learned_onnx(tmp_path / "a.onnx"))
    assert result.exit_code == 2
    assert "--yes" in result.output


def test_on_a_terminal_the_command_asks_for_missing_answers(home: Path, tmp_path: Path) -> None:
    """Name, output, licence, colour (wrongly at first), mean and scale."""
    model = learned_onnx(tmp_path / "theirs.onnx", second_output=True)
    answers = "asked\nembedding\nMIT\ngrey\nbgr\n\n\n"
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "app.cli", "recognisers", "add", str(model)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("LIKENESS_")} | {"LIKENESS_HOME": str(home)}
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=root
    )
    os.write(ours, answers.encode())
    output = process.communicate(timeout=120)[0].decode()
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 0, output
    says = json.loads((home / "recognisers" / "asked" / "manifest.json").read_text())
    assert (says["output"], says["licence"], says["colour"]) == ("embedding", "MIT", "bgr")
    assert says["mean"] == says["scale"] == [127.5] * 3
    assert "'grey' is none of rgb, bgr" in output


def test_a_manifest_is_added_with_its_model(home: Path, tmp_path: Path) -> None:
    path = tiny_cnn(tmp_path)
    result = likeness(home, "recognisers", "add", path, "--name", "ours", "--yes", "--force")
    assert result.exit_code == 0, result.output
    spec = listed(home)["ours"].spec
    assert spec is not None
    assert spec.name == "cnn"
    (tmp_path / "broken.json").write_text("{")
    assert "is not a manifest" in likeness(home, "recognisers", "add", tmp_path / "broken.json", "--yes").output


def test_sface_is_installed_from_a_file_only_if_its_hash_matches(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = learned_onnx(tmp_path / "sface.onnx")
    refused = likeness(home, "recognisers", "pull", "sface", "--file", model)
    assert refused.exit_code == 1
    assert "truncated or a different file" in refused.output.replace("\n", " ")
    assert not listed(home)["sface"].spec
    assert "recognisers pull sface" in listed(home)["sface"].install
    monkeypatch.setattr(commands, "SFACE_SHA256", hashlib.sha256(model.read_bytes()).hexdigest())
    result = likeness(home, "recognisers", "pull", "sface", "--file", model)
    assert result.exit_code == 0, result.output
    says = json.loads((home / "recognisers" / "sface" / "manifest.json").read_text())
    assert (says["mean"], says["scale"], says["dim"], says["licence"]) == ([0.0] * 3, [1.0] * 3, 128, "Apache-2.0")
    assert likeness(home, "recognisers", "pull", "nobody").exit_code == 2


def test_the_address_of_sface_is_pinned_by_a_commit() -> None:
    assert f"/raw/{catalogue.SFACE_COMMIT}/" in catalogue.SFACE.source
    assert len(catalogue.SFACE_COMMIT) == 40


def test_the_list_shows_licence_size_source_accuracy_and_how_to_install(home: Path, tmp_path: Path) -> None:
    add(home, learned_onnx(tmp_path / "theirs.onnx"), "--licence", "MIT")
    result = likeness(home, "recognisers", "list")
    assert result.exit_code == 0, result.output
    for words in ("sface: not installed: likeness recognisers pull sface", "38.7 MB", "Apache-2.0", "99.4 % pairs",
                  "as published", "lbp: installed", "theirs: installed", "MIT; ", "24 numbers a face"):  # fmt: skip
        assert words in result.output


def test_the_dimension_listed_for_lbp_is_that_of_the_descriptor() -> None:
    from ml.registry import build

    assert build("descriptors", "lbp").dim == catalogue.LBP.dim


def test_recognisers_from_settings_are_listed_first_and_broken_ones_with_the_reason(home: Path, tmp_path: Path) -> None:
    settings = Settings(home=home, descriptor_manifests={"theirs": tiny_onnx(tmp_path), "gone": tmp_path / "no.json"})
    known = {entry.name: entry for entry in catalogue.list_recognisers(settings)}
    assert known["theirs"].spec is not None
    assert known["gone"].spec is None
    with pytest.raises(Conflict, match=r"gone is not installed: no manifest at .*no\.json"):
        catalogue.find_recogniser(settings, "gone")
    with pytest.raises(
        Invalid, match="no recogniser is named 'nobody'; there are: dlib_resnet, sface, lbp, gone, theirs"
    ):
        catalogue.find_recogniser(settings, "nobody")
    with pytest.raises(Conflict, match="taken by the settings"):
        manifests.check_name(settings, "theirs")


def test_an_altered_file_makes_a_recogniser_unusable_with_the_reason(home: Path, tmp_path: Path) -> None:
    add(home, learned_onnx(tmp_path / "a.onnx"))
    assert listed(home)["a"].spec is not None
    with (home / "recognisers" / "a" / "a.onnx").open("ab") as file:
        file.write(b"more")
    with pytest.raises(Conflict, match=r"a is not installed: .* SHA-256"):
        catalogue.find_recogniser(Settings(home=home), "a")
    assert listed(home)["a"].spec is None


def test_equal_recognisers_give_the_same_model_id_and_different_ones_do_not(tmp_path: Path) -> None:
    ids = []
    for folder, name, flip in (("h1", "a", 1.0), ("h2", "b", 1.0), ("h3", "a", -1.0)):
        home = tmp_path / folder
        home.mkdir()
        model = learned_onnx(tmp_path / "model.onnx", flip=flip)
        assert add(home, model, "--name", name).exit_code == 0
        ids.append(build_model(catalogue.find_recogniser(Settings(home=home), name)).id)
    assert ids[0] == ids[1] != ids[2]


def test_a_model_finds_its_recogniser_again_after_the_home_was_moved(home: Path, tmp_path: Path) -> None:
    add(home, learned_onnx(tmp_path / "a.onnx"))
    model = build_model(catalogue.find_recogniser(Settings(home=home), "a"))
    path = save_model(model, home / "generations_")
    moved = home.rename(tmp_path / "moved")
    recipe = load_model(moved / path.relative_to(home)).recipe
    manifest_paths = find_recipe_files(recipe, moved)
    assert manifest_paths.keys == model.recipe.keys
    assert Path(str(manifest_paths.descriptors[0].options["manifest"])).is_relative_to(moved)
    plain = Recipe((Spec("lbp"),))
    assert find_recipe_files(plain, moved) == plain


@pytest.mark.parametrize(("old", "new"), [("pull", "detectors pull"), ("train-cnn", "recognisers train-cnn")])
def test_the_old_commands_name_their_replacements(old: str, new: str, home: Path, tmp_path: Path) -> None:
    words = (
        ["yunet", "--file", __file__]
        if old == "pull"
        else ["--data", tmp_path, "--out", tmp_path / "out", "--steps", "1"]
    )
    result = likeness(home, "models", old, *words)
    assert f"this command is now `likeness {new}`" in result.output
    commands = re.findall(r"^\W*([a-z-]+)  ", likeness(home, "models", "--help").output, re.MULTILINE)
    assert "without" in commands
    assert old not in commands
