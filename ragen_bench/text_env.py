"""`TextEnv`: the text layer over a `SymbolicEnv`: rules, replies, feedback, limits."""

import copy
import importlib
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import gymnasium
from gymnasium.error import ResetNeeded

from ragen_bench.errors import InvalidSpec, UnknownName
from ragen_bench.parsing import ReplyParser
from ragen_bench.spaces import FreeText
from ragen_bench.symbolic import Split, SymbolicEnv
from ragen_bench.wording import counted

PromptLength: TypeAlias = Literal["full", "compact"]

SETTINGS = frozenset(
    {
        "max_turns",
        "max_actions_per_turn",
        "prompt",
        "invalid",
        "format_penalty",
        "strict",
        "show_legal",
    }
)
"""The settings of the text layer; all others are the core's."""

_NOTHING = " Nothing was done."
_REFUSED = {
    "full": {
        "empty": "Your reply was empty. Nothing was done.",
        "no_answer": (
            "Your reply had no <answer>...</answer> that could be read. "
            "Nothing was done."
        ),
        "unparsable": (
            "Your answer holds something that is not an action. Nothing was done."
        ),
        "cut_off": "Your reply was cut off before its end. Nothing was done.",
        "too_many": "Your answer held too many actions; only the first were done.",
        "illegal": "Your answer held an action that is not allowed now.",
    },
    "compact": {
        "empty": "Invalid: empty.",
        "no_answer": "Invalid: no answer.",
        "unparsable": "Invalid: not an action.",
        "cut_off": "Invalid: cut off.",
        "too_many": "Too many actions.",
        "illegal": "Not allowed.",
    },
}


class InvalidPolicy:
    """What an invalid reply costs: ``noop``, ``retry:k``, ``terminate``, ``default:A``.

    - ``noop``: the turn is spent and nothing happens.
    - ``retry:k``: up to k invalid replies an episode cost no turn.
    - ``terminate``: the episode ends, unsolved.
    - ``default:A``: action A is played in its place.

    A reply of which something was executed (``too_many``, or an illegal action
    after legal ones) spends its turn under ``noop``, ``retry`` and ``default``.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind, _, argument = text.partition(":")
        self.retries = 0
        self.default = argument
        if self.kind == "retry" and argument.isdecimal() and int(argument) > 0:
            self.retries = int(argument)
        elif not (
            (self.kind in ("noop", "terminate") and not argument)
            or (self.kind == "default" and argument)
        ):
            raise InvalidSpec(
                f"invalid is {text!r}, but must be 'noop', 'retry:k' with k >= 1, "
                "'terminate' or 'default:ACTION'"
            )


class TextEnv(gymnasium.Env[str, str]):
    """A task played in text: observations and replies are strings.

    A reply such as ``<think>...</think><answer>Up || Right</answer>`` is one turn
    and may hold several actions.  ``info["rules"]`` of `reset` has the rules, which
    every player is told once.  ``step`` returns, in its info:

    - ``parse``: ``ok``, ``empty``, ``no_answer``, ``unparsable``, ``illegal``,
      ``too_many`` or ``cut_off``; ``valid`` is True for ``ok`` alone.
    - ``actions``: the names of the executed actions; ``effective``: for each,
      whether it changed the state.
    - ``reward_parts``: ``task`` and ``format``, which add up to the reward.
    - ``scored_reward``: what scores count (see `SymbolicEnv`).
    - ``success``, ``progress``, ``action_mask``, ``turns_left``, ``actions_left``.

    Running out of turns or actions truncates, but the reply to a task of one turn
    terminates it.

    Args:
        core: The task, or its class as ``"module:Class"``.
        level: Difficulty, 1 to 5.
        split: ``"train"``, ``"dev"`` or ``"test"``.
        preset: Named settings of the literature.
        max_turns: Overrides the level's limit of replies.
        max_actions_per_turn: Overrides the level's limit of actions in a reply.
        prompt: ``"full"`` or ``"compact"`` rules and feedback.
        invalid: What an invalid reply costs (see `InvalidPolicy`).
        format_penalty: Added to the reward of an invalid reply, at most 0; never
            part of a score.
        strict: Whether two different answers in one reply are ``unparsable``.
        show_legal: Whether observations list the legal actions.
        render_mode: None or ``"ansi"``.
        **settings: Anything that the core accepts.

    Raises:
        InvalidSpec: A value breaks a rule.
        UnknownName: A name does not exist.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(
        self,
        core: str | SymbolicEnv[Any],
        *,
        level: int = 1,
        split: Split = "train",
        preset: str | None = None,
        max_turns: int | None = None,
        max_actions_per_turn: int | None = None,
        prompt: PromptLength = "full",
        invalid: str | None = None,
        format_penalty: float | None = None,
        strict: bool = False,
        show_legal: bool = False,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        if prompt not in get_args(PromptLength):
            raise UnknownName.of("prompt length", prompt, get_args(PromptLength))
        if isinstance(core, str):
            core = load_core(core)(
                level=level,
                split=split,
                preset=preset,
                render_mode=render_mode,
                **settings,
            )
        self.core = core
        self.render_mode = render_mode
        defaults = core.level_spec.settings
        self.limits = core.limits.override(
            max_turns=max_turns, max_actions_per_turn=max_actions_per_turn
        )
        if self.limits.max_turns < core.min_turns:
            raise InvalidSpec(
                f"max_turns is {self.limits.max_turns!r}, but this task needs at least "
                f"{core.min_turns}"
            )
        self.prompt = prompt
        if invalid is None:
            invalid = defaults.get("invalid", "noop")
        self.invalid = InvalidPolicy(invalid)
        if format_penalty is None:
            format_penalty = defaults.get("format_penalty", 0.0)
        if not -math.inf < format_penalty <= 0:
            raise InvalidSpec(
                f"format_penalty is {format_penalty!r}, but is added to the reward "
                "and so must be at most 0"
            )
        self.format_penalty = float(format_penalty)
        for name, flag in (("strict", strict), ("show_legal", show_legal)):
            if type(flag) is not bool:
                raise InvalidSpec(f"{name} is {flag!r}, but must be true or false")
        self.strict = strict
        self.show_legal = show_legal
        self.turns = 0
        self.retries = 0
        self.terminated = False
        self.truncated = False
        self._playing = False
        self._refused = _REFUSED[prompt]
        self._replies = FreeText()
        self.observation_space = FreeText()
        self.action_space = self._replies
        self._name_actions()

    @property
    def action_names(self) -> tuple[str, ...]:
        """The names of the actions, by index of the core's action space."""
        return self.core.actions

    # Gymnasium's interface --------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; see `SymbolicEnv.reset` for ``seed`` and ``options``."""
        if seed is not None:
            super().reset(seed=seed)
        _, info = self.core.reset(seed=seed, options=options)
        # One generator for both layers: without a seed it is the core's that goes on.
        self._np_random = self.core.np_random
        self.turns = 0
        self.retries = 0
        self.terminated = False
        self.truncated = False
        self._playing = True
        self._name_actions()
        if self.invalid.kind == "default":
            self._default_action()  # refuses an unknown one before anybody plays
        return self._observe(""), {
            "rules": self.rules(),
            "action_names": self.core.actions,
            "success": info["success"],
            "progress": info["progress"],
            "action_mask": info["action_mask"],
            "turns_left": self.limits.max_turns,
            "actions_left": self.core.actions_left,
        }

    def step(
        self,
        action: str,
        *,
        thinking: str | None = None,
        finish_reason: str | None = None,
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one reply.

        Args:
            action: The reply, as the agent wrote it.
            thinking: Reasoning that came apart from the reply, if any.
            finish_reason: ``"length"`` marks a reply that was cut off.

        Raises:
            ResetNeeded: The episode is over or has not begun.
        """
        if not self._playing:
            raise ResetNeeded("the episode has ended or not begun: call reset first")
        core = self.core
        parsed = self._parser.parse(
            action, thinking=thinking, finish_reason=finish_reason
        )
        outcome: str = parsed.outcome
        indices = parsed.actions
        executed: list[str] = []
        effective: list[bool] = []
        events: list[str] = []
        reward = 0.0
        scored = 0.0
        terminated = truncated = False
        info: dict[str, Any] = {}
        while True:
            for index in indices:
                if not core.is_legal(index):
                    outcome = "illegal"
                    break
                _, gain, terminated, truncated, info = core.step(index)
                executed.append(core.actions[index])
                effective.append(info["effective"])
                events.append(core.event())
                reward += gain
                scored += info["scored_reward"]
                if terminated or truncated:
                    break
            if executed or outcome == "ok" or self.invalid.kind != "default":
                break
            indices = (self._default_action(),)
            if not core.is_legal(indices[0]):
                break
        valid = outcome == "ok"
        penalty = 0.0 if valid else self.format_penalty
        retry = (
            not valid
            and not executed
            and self.invalid.kind == "retry"
            and self.retries < self.invalid.retries
        )
        if retry:
            self.retries += 1
        else:
            self.turns += 1
        if not valid and self.invalid.kind == "terminate":
            terminated, truncated = True, False
        if not terminated and self.turns >= self.limits.max_turns:
            # The one reply of a task is its end, whatever it says, not a limit that
            # cuts it short (and Gymnasium takes a first step that truncates for a bug).
            terminated = self.limits.max_turns == 1
            truncated = not terminated
        if terminated or truncated:
            self._playing = False
            self.terminated = terminated
            self.truncated = truncated
        feedback = self._feedback(outcome, executed, effective, events, reward)
        return (
            self._observe(feedback),
            reward + penalty,
            terminated,
            truncated,
            {
                "parse": outcome,
                "valid": valid,
                "thinking": parsed.thinking,
                "actions": tuple(executed),
                "effective": tuple(effective),
                "reward_parts": {"task": reward, "format": penalty},
                "scored_reward": scored,
                "success": core.success,
                "progress": info["progress"] if info else core.progress(),
                "action_mask": info["action_mask"] if info else core.action_mask(),
                "turns_left": self.limits.max_turns - self.turns,
                "actions_left": core.actions_left,
            },
        )

    def render(self) -> str | None:
        """Return the text of the state in mode ``"ansi"``, else None."""
        return self.core.to_text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the core; closing twice is allowed."""
        self.core.close()

    # Text ---------------------------------------------------------------------

    def rules(self) -> str:
        """Return what a player is told once: goal, symbols, actions, limits, form."""
        names = self.core.actions
        limits = self.limits
        legend = self.core.legend()
        several = limits.max_actions_per_turn > 1
        example = " || ".join(names[:2] if several else names[:1])
        if self.prompt == "compact":
            parts = [", ".join(f"{glyph} {what}" for glyph, what in legend.items())]
            parts.append(
                f"Actions: {', '.join(names)}. "
                f"{counted(limits.max_actions, 'action')}, "
                f"{counted(limits.max_turns, 'turn')}, "
                f"{limits.max_actions_per_turn} a turn."
            )
            parts.append(f"<answer>{example}</answer>")
            return "\n".join(part for part in parts if part)
        parts = [self.core.rules()]
        if legend:
            lines = [f"{glyph} {what}" for glyph, what in legend.items()]
            parts.append("\n".join(["Symbols:", *lines]))
        turn = (
            f"may hold up to {limits.max_actions_per_turn} actions, separated by "
            '" || " and played in order'
            if several
            else "holds one action"
        )
        parts.append(
            f"Actions: {', '.join(names)}.\n"
            f"Limits: {counted(limits.max_actions, 'action')} and "
            f"{counted(limits.max_turns, 'turn')} in all. Each of your replies is one "
            f"turn and {turn}.{self._costs()}\n"
            f"Give your answer in this form: <answer>{example}</answer>"
        )
        return "\n\n".join(parts)

    def _costs(self) -> str:
        """Return what an invalid reply costs, where it is not the turn alone."""
        retries = counted(self.invalid.retries, "reply", "replies")
        told = {
            "noop": "",
            "retry": f" Up to {retries} that cannot be read cost no turn.",
            "terminate": " A reply that cannot be read ends the episode.",
            "default": (
                " In place of a reply that cannot be read, "
                f"{self.invalid.default} is played."
            ),
        }[self.invalid.kind]
        if self.format_penalty:
            told += f" A reply that breaks these rules costs {-self.format_penalty:g}."
        return told

    def _observe(self, feedback: str) -> str:
        core = self.core
        if not self._playing:
            return f"{feedback}\n{core.to_text()}"
        turn = self.turns + 1
        if self.prompt == "compact":
            left = counted(core.actions_left, "action")
            head = f"Turn {turn}/{self.limits.max_turns}, {left}"
        else:
            head = (
                f"Turn {turn} of {self.limits.max_turns}. "
                f"Actions left: {core.actions_left}."
            )
        text = f"{head}\n{core.to_text()}"
        if self.show_legal:
            mask = core.action_mask()
            legal = (name for name, ok in zip(core.actions, mask, strict=True) if ok)
            text = f"{text}\nLegal actions: {', '.join(legal)}."
        return f"{feedback}\n{text}" if feedback else text

    def _feedback(
        self,
        outcome: str,
        executed: list[str],
        effective: list[bool],
        events: list[str],
        reward: float,
    ) -> str:
        parts = []
        if outcome != "ok":
            refused = self._refused[outcome]
            # A default action was played in place of the reply.
            parts.append(refused.removesuffix(_NOTHING) if executed else refused)
        if executed:
            told = [
                event or (name if changed else f"{name} (no effect)")
                for name, changed, event in zip(
                    executed, effective, events, strict=True
                )
            ]
            played = ", ".join(told)
            full = self.prompt == "full"
            parts.append(f"Played: {played}." if full else f"{played}.")
        if self.prompt == "full":
            parts.append(f"Reward: {reward:g}.")
        return " ".join(parts)

    # Snapshots ----------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return all of the state as JSON-able values."""
        return {
            "core": self.core.get_state(),
            "turns": self.turns,
            "retries": self.retries,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "playing": self._playing,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `get_state` returned, in this or another env."""
        self.core.set_state(state["core"])
        self._np_random = self.core.np_random
        self.turns = state["turns"]
        self.retries = state["retries"]
        self.terminated = state["terminated"]
        self.truncated = state["truncated"]
        self._playing = state["playing"]
        self._name_actions()

    def clone(self) -> "TextEnv":
        """Return an independent copy in the same state."""
        return copy.deepcopy(self)

    # Details ------------------------------------------------------------------

    def _name_actions(self) -> None:
        names = self.core.actions
        self._parser = ReplyParser.of(
            names, self.limits.max_actions_per_turn, self.strict
        )
        self._replies.samples = tuple(f"<answer>{n}</answer>" for n in names)

    def _default_action(self) -> int:
        wanted = self.invalid.default.casefold()
        for index, name in enumerate(self.core.actions):
            if name.casefold() == wanted:
                return index
        raise UnknownName.of("action", self.invalid.default, self.core.actions)


def load_core(entry_point: str) -> type[SymbolicEnv[Any]]:
    """Return the class that ``"module:Class"`` names.

    Raises:
        UnknownName: The module has no such class.
        ModuleNotFoundError: There is no such module.
    """
    module, _, name = entry_point.partition(":")
    core = getattr(importlib.import_module(module), name, None)
    if not (isinstance(core, type) and issubclass(core, SymbolicEnv)):
        raise UnknownName(
            f"{entry_point!r} is not a SymbolicEnv; write it as 'module:Class'"
        )
    return core
