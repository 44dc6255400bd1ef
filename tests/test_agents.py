"""The agents of the project, each played by hand."""

import asyncio
import collections
from collections.abc import Mapping
from typing import Any

import pytest
import toy

import ragen_bench as rb
from ragen_bench.episode import task_of
from ragen_bench.errors import ContextOverflow, InvalidSpec
from ragen_bench.plan import Settings, resolve
from ragen_bench.records import EpisodeKey
from ragen_bench.shots import solved_examples


def begin(
    agent: rb.Agent, seed: int = 1, *, shots: tuple = (), **settings: Any
) -> tuple[rb.TextEnv, str, dict[str, Any]]:
    """Return an environment in which an agent stands before its first turn."""
    env = rb.make(toy.CELL, split="test", **settings)
    observation, info = env.reset(seed=seed)
    key = EpisodeKey(toy.CELL, env.core.level, "test", seed, 0)
    agent.reset(task_of(key, env, info["rules"], shots, agent, salt=""))
    return env, observation, info


def replies(agent: rb.Agent, seed: int = 1, **settings: Any) -> list[rb.Reply]:
    """Return an agent's replies of one episode."""

    async def episode() -> list[rb.Reply]:
        env, observation, info = begin(agent, seed, **settings)
        said = []
        terminated = truncated = False
        while not (terminated or truncated):
            said.append(await agent.act(observation, info))
            observation, _, terminated, truncated, info = env.step(said[-1].text)
        return said

    return asyncio.run(episode())


def test_null_says_nothing() -> None:
    assert [reply.text for reply in replies(rb.make_agent("null"))] == [""] * 5


def test_random_fills_each_reply_with_uniform_action_names() -> None:
    counts: collections.Counter = collections.Counter()
    agent = rb.make_agent("random")
    for seed in range(100):
        for reply in replies(agent, seed, max_turns=10, max_actions=30):
            answer = reply.text.removeprefix("<answer>").removesuffix("</answer>")
            names = answer.split(" || ")
            assert len(names) == 3
            counts.update(names)
    assert counts.keys() == {"Left", "Right", "Wait"}
    share = 1 / 3
    deviation = (counts.total() * share * (1 - share)) ** 0.5
    for count in counts.values():
        assert abs(count - counts.total() * share) < 4 * deviation


def test_random_depends_on_nothing_but_its_seed() -> None:
    agent = rb.make_agent("random")
    first = [reply.text for reply in replies(agent, 3)]
    assert [reply.text for reply in replies(agent, 3)] == first
    assert [reply.text for reply in replies(rb.make_agent("random"), 3)] == first
    assert [reply.text for reply in replies(agent, 4)] != first


def test_oracle_plays_the_optimum_within_the_limits() -> None:
    oracle = rb.make_agent("oracle")
    assert oracle.privileged
    core = rb.make(toy.CELL, split="test").core
    seed = next(seed for seed in range(9) if core.draw(seed)[0] == 1)
    assert [reply.text for reply in replies(oracle, seed)] == [
        "<answer>Right || Right || Right</answer>"
    ]
    assert [reply.text for reply in replies(oracle, seed, max_actions=2)] == [
        "<answer>Right || Right</answer>"
    ]
    # Where an action's outcome is uncertain, it looks after each.
    noisy = replies(oracle, seed, level=2, max_turns=10)
    assert {reply.text for reply in noisy} == {"<answer>Right</answer>"}


def test_oracle_may_say_why() -> None:
    reasons = [
        reply.text for reply in replies(rb.make_agent("oracle", reasoning=True), 1)
    ]
    assert reasons[0].startswith("<think>The goal is ")
    assert reasons[0].endswith("</think><answer>Right || Right || Right</answer>")


def test_agents_say_what_they_are_listed_as() -> None:
    classes = {
        "null": "solver",
        "random": "solver",
        "oracle": "solver",
        "direct": "llm",
        "think_act": "llm",
    }
    for name, kind in classes.items():
        agent = rb.make_agent(name, toy.load_parrot(""))
        assert agent.agent_class == kind
        assert agent.privileged == (name == "oracle")


# Agents that ask a model --------------------------------------------------------


class Scribe(rb.Model):
    """Says ``<answer>Right</answer>`` and keeps all that it was asked."""

    name = "scribe"

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int, list[rb.model.Message], rb.Sampling]] = []

    async def generate(
        self, conversation: rb.Conversation, sampling: rb.Sampling
    ) -> rb.Completion:
        number = len(self.asked)
        held = (conversation.key, conversation.seed, conversation.turn)
        self.asked.append((*held, list(conversation.messages), sampling))
        return rb.Completion(
            text="<answer>Right</answer>",
            thinking="apart",
            token_ids=(number,),
            usage=rb.model.Usage(input_tokens=10, output_tokens=2),
            details={"id": number},
        )


@pytest.mark.parametrize(("name", "tokens"), [("direct", 32), ("think_act", 256)])
def test_a_chat_agent_asks_with_the_sampling_of_its_protocol(name, tokens) -> None:
    scribe = Scribe()
    replies(rb.make_agent(name, scribe))
    assert scribe.asked[0][4] == rb.Sampling(
        temperature=0.0, top_p=1.0, max_tokens=tokens, stop=("</answer>",)
    )
    other = Scribe()
    replies(
        rb.make_agent(name, other, temperature=0.7, top_p=0.9, max_tokens=8),
    )
    assert other.asked[0][4] == rb.Sampling(temperature=0.7, top_p=0.9, max_tokens=8)


def test_a_chat_agent_keeps_the_conversation_and_its_tokens() -> None:
    scribe = Scribe()
    said = replies(rb.make_agent("direct", scribe))
    assert [turn for _, _, turn, _, _ in scribe.asked] == list(range(len(said)))
    assert {key for key, *_ in scribe.asked} == {"toy/Corridor-v0:1/test/1/0"}
    assert len({seed for _, seed, *_ in scribe.asked}) == 1
    messages = scribe.asked[2][3]
    assert [m.role for m in messages] == [
        "system",
        *("user", "assistant") * 2,
        "user",
    ]
    assert [m.token_ids for m in messages] == [None, None, (0,), None, (1,), None]
    # A thought that came apart is no part of the next prompt's text.
    assert not any("apart" in m.content for m in messages)
    assert [m.thinking for m in messages] == [None, None, *("apart", None) * 2]
    reply = said[0]
    assert (reply.thinking, reply.finish_reason) == ("apart", "stop")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 2)
    assert reply.details == {"id": 0}
    assert reply.context_cut == 0
    assert len({r.prompt_sha256 for r in said}) == len(said)


def test_a_chat_agent_begins_each_episode_afresh() -> None:
    scribe = Scribe()
    agent = rb.make_agent("direct", scribe)
    replies(agent, 1)
    first = len(scribe.asked)
    replies(agent, 2)
    key, _, turn, messages, _ = scribe.asked[first]
    assert (key, turn) == ("toy/Corridor-v0:1/test/2/0", 0)
    assert [m.role for m in messages] == ["system", "user"]
    assert scribe.asked[first][1] != scribe.asked[0][1]


def test_the_prompt_follows_protocol_and_length() -> None:
    systems = {}
    for name in ("direct", "think_act"):
        for prompt in ("full", "compact"):
            scribe = Scribe()
            replies(rb.make_agent(name, scribe), prompt=prompt)
            systems[name, prompt] = scribe.asked[0][3][0].content
    for (name, prompt), text in systems.items():
        assert "<answer>Left || Right</answer>" in text
        assert ("<think>" in text) == (name == "think_act")
        assert ("Walk right" in text) == (prompt == "full")
    assert len(set(systems.values())) == 4


def test_shots_stand_between_rules_and_task() -> None:
    shots = solved_examples(toy.CELL, 1, 2, {})
    for name in ("direct", "think_act"):
        scribe = Scribe()
        replies(rb.make_agent(name, scribe), shots=shots)
        messages = scribe.asked[0][3]
        contents = [m.content for m in messages]
        assert contents[1].startswith("Example 1.\nTurn 1 of 5.")
        assert contents[-1].startswith("Your task.\nTurn 1 of 5.")
        assert ("<think>The goal is" in contents[2]) == (name == "think_act")
        assert contents[2].endswith("<answer>Right || Right || Right</answer>")
        assert messages[2].token_ids is None


def test_shots_are_the_same_for_everybody_and_different_from_each_other() -> None:
    shots = solved_examples(toy.CELL, 1, 4, {})
    assert shots == solved_examples(toy.CELL, 1, 4, {"split": "test"})
    assert shots[:2] == solved_examples(toy.CELL, 1, 2, {})
    assert len({shot.turns[0].observation for shot in shots}) == 4
    assert solved_examples(toy.CELL, 1, 0, {}) == ()


def test_shots_of_a_noisy_task_show_success() -> None:
    # Six tries for three or four steps that succeed every other time.
    for shot in solved_examples(toy.CELL, 2, 9, {"max_turns": 6, "max_actions": 6}):
        assert shot.turns[-1].observation.endswith("...PG")
        assert all(turn.actions == ("Right",) for turn in shot.turns)


def test_shots_that_never_succeed_come_to_an_end() -> None:
    shots = solved_examples(toy.CELL, 1, 2, {"length": 50})
    assert len(shots) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"context": "window"}, "context is 'window'"),
    ],
)
def test_a_chat_agent_refuses_wrong_settings(settings, message) -> None:
    with pytest.raises(InvalidSpec, match=message):
        rb.make_agent("direct", Scribe(), **settings)


def test_a_reply_that_failed_leaves_no_trace() -> None:
    """Who catches an overflow and asks again has the conversation as it was."""
    parrot = toy.load_parrot("", context=1)
    agent = rb.make_agent("direct", parrot)
    _, observation, info = begin(agent)
    with pytest.raises(ContextOverflow):
        asyncio.run(agent.act(observation, info))
    parrot.context = None
    toy.Parrot.prompts.clear()
    asyncio.run(agent.act(observation, info))
    ((_, messages),) = toy.Parrot.prompts
    assert [role for role, _ in messages] == ["system", "user"]


class Peeping(rb.Agent):
    """Calls itself a language model, and looks into the environment."""

    agent_class = "llm"
    privileged = True

    async def act(self, observation: str, info: Mapping[str, Any]) -> rb.Reply:
        return rb.Reply(text="")


def test_whoever_sees_the_environment_is_a_solver() -> None:
    rb.register_agent("peeping")(Peeping)
    plan = resolve(Settings(envs=[toy.CELL], agent="peeping"))
    assert plan.config.agent_class == "solver"
