"""The options of a component that a client may set."""

import pytest

from app.errors import Invalid
from app.learning.component_options import check_options, make_options_model
from ml import registry

DESCRIPTORS_OUT_OF_RANGE = [("lbp", {"cell": 1}), ("lbp", {"patterns": 60}), ("cslbp", {"radius": 5}),
                            ("cslbp", {"threshold": -0.1}), ("fplbp", {"side": 2}), ("fplbp", {"tau": -1}),
                            ("fisher", {"stride": 78})]  # fmt: skip


@pytest.mark.parametrize("kind", ["embedders", "descriptors"])
def test_the_defaults_of_every_component_are_valid(kind: str) -> None:
    for name in registry.names(kind):
        options = check_options(kind, name, {})
        assert set(options) == set(make_options_model(kind, name).model_fields)


@pytest.mark.parametrize(
    "options",
    [{"dim": 0}, {"dim": -1}, {"steps": 0}, {"seed": -1}, {"dim": float("inf")}, {"dim": "wide"}, {"height": 3}],
    ids=str,
)
def test_a_value_outside_its_range_or_type_is_refused_with_the_list_of_options(options: dict[str, object]) -> None:
    with pytest.raises(Invalid) as refused:
        check_options("embedders", "ldml", options)
    assert next(iter(options)) in refused.value.detail
    assert {"dim", "steps", "seed"} <= set(refused.value.extra["options"])


@pytest.mark.parametrize(("name", "options"), DESCRIPTORS_OUT_OF_RANGE, ids=str)
def test_a_descriptor_refuses_values_out_of_range_too(name: str, options: dict[str, object]) -> None:
    with pytest.raises(Invalid) as refused:
        check_options("descriptors", name, options)
    assert f"option {next(iter(options))!r} of {name}" in refused.value.detail


def test_a_range_is_the_one_that_the_component_declares() -> None:
    [held_out] = [option for option in registry.list_options("embedders", "ldml") if option.name == "held_out"]
    assert held_out.high is not None
    assert check_options("embedders", "ldml", {"held_out": held_out.high})["held_out"] == held_out.high
    with pytest.raises(Invalid, match="held_out"):
        check_options("embedders", "ldml", {"held_out": held_out.high + 0.01})


def test_a_client_sets_no_device_and_no_file_of_the_server() -> None:
    for name, option in (("ldml", "device"), ("flat", "device")):
        with pytest.raises(Invalid, match=option):
            check_options("embedders", name, {option: "cpu"})
    for name, option in (("fisher", "vocabulary"), ("dlib_resnet", "weights"), ("onnx", "manifest"), ("cnn", "pin")):
        with pytest.raises(Invalid, match=option):
            check_options("descriptors", name, {option: "/etc/passwd"})


def test_an_option_may_be_given_by_its_earlier_name() -> None:
    options = check_options("embedders", "scml", {"needed": 7})
    assert options["min_pairs"] == 7
    assert "needed" not in options
