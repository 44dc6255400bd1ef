"""Names find what they stand for, and say what is near when they find nothing."""

import gymnasium
import pytest
import toy

import ragen_bench as rb
from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.registry import (
    AGENTS,
    MODELS,
    Registry,
    core_class,
    env_ids,
    find,
    setting_names,
    uses_model,
)


@pytest.fixture
def shelf() -> Registry:
    shelf: Registry = Registry("toy", "ragen-bench ls toys")
    shelf.add("walker", toy.Walker)
    shelf.add("gambler", "toy:Gambler")
    return shelf


def test_a_name_is_a_thing_or_where_to_find_it(shelf) -> None:
    assert shelf.get("walker") is toy.Walker
    assert shelf.get("gambler") is toy.Gambler
    assert shelf.get("toy:Spy") is toy.Spy
    assert list(shelf) == ["gambler", "walker"]


def test_the_same_thing_twice_is_once(shelf) -> None:
    shelf.add("walker", toy.Walker)
    shelf.add("walker", "toy:Walker")
    shelf.add("gambler", toy.Gambler)
    assert list(shelf) == ["gambler", "walker"]


def test_a_taken_name_is_refused_and_both_owners_named(shelf) -> None:
    with pytest.raises(InvalidSpec, match="'walker' is toy:Walker.*; toy:Spy needs"):
        shelf.add("walker", toy.Spy)
    assert shelf.get("walker") is toy.Walker


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wolker", "no toy 'wolker'; did you mean 'walker'.*see ragen-bench ls toys"),
        ("zzz", "no toy 'zzz'; known are gambler, walker"),
        ("nowhere:X", "there is no module 'nowhere'; is its folder on PYTHONPATH"),
        ("toy.below:X", "there is no module 'toy.below'"),
        ("toy:X", "module 'toy' has no 'X'"),
        ("toy:CELL", "module 'toy' has no 'CELL' that can be called"),
        (":X", "there is no module ''"),
        ("..toy:X", "there is no module '..toy'"),
    ],
)
def test_an_unknown_name_says_what_is_known(shelf, name, message) -> None:
    with pytest.raises(UnknownName, match=message):
        shelf.get(name)
    with pytest.raises(LookupError):
        shelf.get(name)


def test_a_module_that_lacks_another_one_says_so_itself(
    shelf, tmp_path, monkeypatch
) -> None:
    (tmp_path / "lacking.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        shelf.get("lacking:Agent")


def test_the_agents_of_the_project_are_there() -> None:
    assert {"null", "random", "oracle", "direct", "think_act"} <= set(AGENTS)
    for name in AGENTS:
        assert issubclass(AGENTS.get(name), rb.Agent), name  # type: ignore[arg-type]


def test_an_agent_may_be_anybodys_class() -> None:
    agent = rb.make_agent("toy:Walker", steps=2)
    assert isinstance(agent, toy.Walker)
    assert agent.steps == 2


def test_agents_refuse_what_they_do_not_take() -> None:
    with pytest.raises(UnknownName, match="'step'; did you mean 'steps'"):
        rb.make_agent("toy:Walker", step=2)
    for name in ("model", "name"):
        with pytest.raises(UnknownName, match=f"no argument of agent .* '{name}'"):
            rb.make_agent("toy:Walker", **{name: "x"})
    with pytest.raises(UnknownName, match="no argument of agent .* 'model'"):
        rb.make_agent("direct", **{"model": "x"})
    with pytest.raises(InvalidSpec, match="not an Agent"):
        rb.make_agent("toy:Corridor")


def test_an_agent_gets_the_model_that_it_asks_for() -> None:
    model = toy.load_parrot("")
    agent = rb.make_agent("direct", model)
    assert agent.model is model  # type: ignore[attr-defined]
    rb.make_agent("null", model)
    with pytest.raises(InvalidSpec, match="needs a model: give --model"):
        rb.make_agent("direct")
    assert uses_model("direct")
    assert not uses_model("null")


def test_a_model_is_a_prefix_and_the_rest() -> None:
    model = rb.make_model("parrot:a:b", context=3)
    assert isinstance(model, toy.Parrot)
    assert (model.text, model.context) == ("a:b", 3)
    assert "parrot" in MODELS


def test_models_refuse_what_they_do_not_take() -> None:
    with pytest.raises(UnknownName, match="no model 'parot'; did you mean 'parrot'"):
        rb.make_model("parot:x")
    with pytest.raises(UnknownName, match="no argument of model 'parrot' 'contest'"):
        rb.make_model("parrot", contest=3)
    for name in ("rest", "spec"):
        with pytest.raises(UnknownName, match=f"no argument of model .* '{name}'"):
            rb.make_model("parrot", **{name: "x"})


def test_a_loader_may_take_arguments_of_any_name(monkeypatch) -> None:
    def load_anything(rest: str, *, context: int = 1, **arguments: object) -> rb.Model:
        return toy.Parrot(repr((rest, context, arguments)), None)

    monkeypatch.setitem(MODELS._items, "anything", load_anything)
    model = rb.make_model("anything:x", context=3, dtype="float32")
    assert model.text == repr(("x", 3, {"dtype": "float32"}))  # type: ignore[attr-defined]
    for name in ("rest", "arguments"):
        with pytest.raises(UnknownName, match=f"no argument of model .* '{name}'"):
            rb.make_model("anything", **{name: "x"})


def test_a_task_has_a_text_layer_and_a_bare_one() -> None:
    env = gymnasium.make("toy/Corridor-v0", split="dev", length=7)
    assert isinstance(env.unwrapped, rb.TextEnv)
    assert env.unwrapped.core.params.length == 7
    assert env.unwrapped.core.split == "dev"
    core = gymnasium.make("toy/Corridor-core-v0", level=2)
    assert isinstance(core.unwrapped, toy.Corridor)
    assert isinstance(rb.make(toy.CELL), rb.TextEnv)
    assert core_class(toy.CELL) is toy.Corridor


def test_a_module_before_the_id_is_imported() -> None:
    assert isinstance(rb.make(f"toy:{toy.CELL}").core, toy.Corridor)
    with pytest.raises(UnknownName, match="no module 'nowhere'"):
        rb.make("nowhere:ns/Name-v0")


def test_registering_the_same_task_again_does_nothing() -> None:
    before = env_ids()
    rb.register("toy/Corridor", toy.Corridor)
    rb.register("toy/Corridor", "toy:Corridor")
    assert env_ids() == before


def test_registering_another_task_under_a_taken_name_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="is toy:Corridor already; toy:Other needs"):
        rb.register("toy/Corridor", "toy:Other")


def test_versions_stand_side_by_side() -> None:
    rb.register("toy/Corridor", toy.Corridor, version=7)
    try:
        assert "toy/Corridor-v7" in env_ids()
        assert core_class("toy/Corridor-v7") is toy.Corridor
    finally:
        del gymnasium.registry["toy/Corridor-v7"]
        del gymnasium.registry["toy/Corridor-core-v7"]


def test_only_our_text_environments_are_listed() -> None:
    ids = env_ids()
    assert ids == sorted(ids)
    assert toy.CELL in ids
    for stranger in ("CartPole-v1", "toy/Corridor-core-v0", "toy/Nothing-v0", ""):
        assert stranger not in ids
        with pytest.raises(UnknownName, match="no environment"):
            find(stranger)


def test_settings_are_told_apart_by_layer() -> None:
    names = setting_names(toy.CELL)
    assert names["strict"] == names["invalid"] == "text"
    assert names["slip"] == names["max_actions"] == names["style"] == "core"
    assert not {"level", "split", "seed"} & names.keys()


def test_every_public_name_is_there() -> None:
    for name in rb.__all__:
        assert getattr(rb, name) is not None
        assert name in dir(rb)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rb.nothing
