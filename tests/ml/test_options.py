"""Options of components: their ranges, groups and earlier names, and the flat form that requests and files have."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from ml.embedders.clml import Clml
from ml.metric_learning.fit_data import FitOptions
from ml.options import flatten_options, from_options, list_options, option, option_group
from ml.registry import build, component, names, summarise
from ml.registry import list_options as list_component_options


@dataclass(frozen=True)
class Filling:
    sugar: float = option(0.5, "share of sugar", low=0, high=1)
    kind: Literal["jam", "curd"] = option("jam", "what is inside", formerly="sort")


@dataclass
class Cake:
    layers: int = option(2, "how many layers", low=1, unit="layers", formerly="floors")
    filling: Filling = option_group(Filling)


def test_options_are_listed_flat_with_their_group_range_unit_and_help() -> None:
    layers, sugar, kind = list_options(Cake)
    assert (layers.name, layers.type, layers.default, layers.low, layers.unit) == ("layers", int, 2, 1, "layers")
    assert (sugar.group, sugar.low, sugar.high, sugar.help) == ("filling", 0, 1, "share of sugar")
    assert (kind.choices, layers.choices) == (("jam", "curd"), ())


def test_flat_options_reach_their_groups_also_by_their_earlier_names() -> None:
    cake = from_options(Cake, {"floors": 3, "sort": "curd"})
    assert cake == Cake(3, Filling(0.5, "curd"))
    assert flatten_options(cake) == {"layers": 3, "sugar": 0.5, "kind": "curd"}
    assert from_options(Cake, flatten_options(cake)) == cake


def test_a_component_may_have_defaults_of_its_own_for_a_shared_group() -> None:
    @dataclass
    class Tart:
        filling: Filling = option_group(Filling, sugar=0.8)

    assert [option.default for option in list_options(Tart)] == [0.8, "jam"]
    assert from_options(Tart, {"kind": "curd"}) == Tart(Filling(0.8, "curd"))
    assert [option.default for option in list_options(Cake)][1:] == [0.5, "jam"]


def test_methods_that_descend_from_a_start_declare_their_fit_alike() -> None:
    shared = {o.name: o for o in list_options(FitOptions)}
    for name in ("cpmtml", "stiefel", "cosim_mass"):
        own = {o.name: o for o in list_component_options("embedders", name) if o.name in shared}
        assert own.keys() == shared.keys()
        for option_name, each in own.items():
            assert replace(each, default=0, group="") == replace(shared[option_name], default=0)


@pytest.mark.parametrize("wrong", ["icing", "filling"])
def test_an_unknown_option_is_refused_and_so_is_the_name_of_a_group(wrong: str) -> None:
    with pytest.raises(TypeError, match=f"Cake has no option '{wrong}'; it has: layers, sugar, kind"):
        from_options(Cake, {wrong: 1})


def test_an_option_under_both_of_its_names_is_refused() -> None:
    with pytest.raises(TypeError, match="'floors' is an earlier name of 'layers'"):
        from_options(Cake, {"floors": 3, "layers": 2})


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("embedders", "descriptors") for n in names(k)])
def test_every_option_is_explained_and_its_default_is_in_range(kind: str, name: str) -> None:
    for each in list_component_options(kind, name):
        assert each.help
        if each.type in (int, float):
            assert each.low is not None
            assert each.low <= each.default
            assert each.high is None or each.default <= each.high
        if each.choices:
            assert each.default in each.choices


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("embedders", "descriptors") for n in names(k)])
def test_text_that_is_no_choice_is_for_the_server_alone(kind: str, name: str) -> None:
    texts = [each for each in list_component_options(kind, name) if each.type in (str, Path)]
    assert [each.name for each in texts if not each.server_only] == [], "free text names devices and files"


@pytest.mark.parametrize("kind", ["embedders", "descriptors"])
def test_a_component_is_summarised_by_the_first_line_of_its_file(kind: str) -> None:
    for name in names(kind):
        assert 20 < len(summarise(kind, name)) < 120
        assert summarise(kind, name).endswith(".")


@pytest.mark.parametrize("name", names("embedders"))
def test_names_of_options_are_unique_whatever_their_group(name: str) -> None:
    listed = [n for o in list_component_options("embedders", name) for n in (o.name, o.formerly) if n]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("name", names("embedders"))
def test_an_embedder_is_at_most_one_base_away_from_the_interface(name: str) -> None:
    lineage = [c for c in component("embedders", name).__mro__ if c.__module__.startswith("ml.")]
    assert len(lineage) <= 3, "the method, one shared base, Embedder"


def test_the_options_of_clml_are_grouped() -> None:
    groups = {o.name: o.group for o in list_options(Clml)}
    assert len(groups) == 33
    assert (groups["k"], groups["axes"], groups["negatives"], groups["soften"]) == ("", "map", "batches", "mixture")
    assert max(list(groups.values()).count(group) for group in set(groups.values())) <= 11


def test_options_are_saved_flat(tmp_path: Path) -> None:
    made = build("embedders", "clml", dim=4, first=5, stay=0.5, soften=2.0)
    made.save(tmp_path)
    saved = json.loads((tmp_path / "embedder.json").read_text())["options"]
    assert (saved["dim"], saved["first_steps"], saved["proximal_weight"], saved["soften"]) == (4, 5, 0.5, 2.0)
    assert Clml.load(tmp_path).options() == made.options() | {"ks": []}
