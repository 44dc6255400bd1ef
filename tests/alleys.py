"""A small task that keeps every promise, and copies of it that break one each."""

import dataclasses
import functools
import itertools
import random

import numpy as np
from gymnasium.spaces import Box

from ragen_bench.registry import register
from ragen_bench.symbolic import Level, Limits, SymbolicEnv
from ragen_bench.text_env import TextEnv

LEFT, RIGHT, JUMP = range(3)


@dataclasses.dataclass(frozen=True)
class Params:
    """An alley of 6 to ``cells`` cells; an action fails with chance ``slip``."""

    cells: int = 30
    slip: float = 0.0


class Alley(SymbolicEnv[Params]):
    """Walk to the right end; Jump crosses a cell, and must not leave the alley."""

    levels = {
        1: Level(
            params=Params(),
            limits=Limits(max_actions=22, max_turns=11),
            summary="at most 30 cells",
        ),
        2: Level(
            params=Params(slip=0.25),
            limits=Limits(max_actions=22, max_turns=11),
            summary="at most 30 cells, slippery",
        ),
    }
    styles = ("grid", "coord")
    actions = ("Left", "Right", "Jump")

    def configure(self):
        self.deterministic = self.params.slip == 0
        self.observation_space = Box(0, self.params.cells, (2,), np.int64)

    def generate(self, stream):
        cells = 6 + stream.below(self.params.cells - 5)
        return {"cells": cells, "start": stream.below(cells - 1)}

    def canonical(self, instance):
        return f"{instance['cells']} {instance['start']}".encode()

    def begin(self, instance):
        self.cells = instance["cells"]
        self.place = instance["start"]

    def is_legal(self, action):
        return action != JUMP or self.place + 2 < self.cells

    def action_mask(self):
        return np.array([self.is_legal(a) for a in range(3)], dtype=np.int8)

    def apply(self, action):
        before = self.place
        if not self.params.slip or self.noise.random() >= self.params.slip:
            self.place = self.after(before, action)
        self.success = self.place == self.cells - 1
        reward = float(self.success)
        return reward, reward, self.success, self.place != before

    def after(self, place, action):
        return max(0, place + (-1, 1, 2)[action])

    def observe(self):
        return np.array([self.place, self.cells], dtype=np.int64)

    def to_text(self):
        if self.style == "coord":
            return f"You are in cell {self.place}, the exit is cell {self.cells - 1}."
        row = ["."] * self.cells
        row[-1], row[self.place] = "E", "P"
        return "".join(row)

    def from_text(self, text):
        if self.style == "coord":
            words = text.rstrip(".").replace(",", "").split()
            self.place, self.cells = int(words[4]), int(words[-1]) + 1
        else:
            self.place, self.cells = text.index("P"), len(text)

    def rules(self):
        chance = f" An action fails with chance {self.params.slip}."
        return "Walk to the exit." + (chance if self.params.slip else "")

    def legend(self):
        if self.style == "coord":
            return {}
        return {"P": "you", "E": "the exit", ".": "an empty cell"}

    def dump(self):
        return self.place

    def restore(self, state):
        self.place = state

    def optimal_action(self):
        return JUMP if self.is_legal(JUMP) else RIGHT

    def optimal_value(self):
        return _value(self.cells, self.place, self.actions_left, self.params.slip, True)

    def random_value(self):
        return _value(
            self.cells, self.place, self.actions_left, self.params.slip, False
        )

    def optimal_cost(self):
        left = self.cells - 1 - self.place
        return None if self.params.slip else (left + 1) // 2


@functools.cache
def _value(cells, place, left, slip, best):
    if place == cells - 1:
        return 1.0
    if left == 0:
        return 0.0
    stay = _value(cells, place, left - 1, slip, best)
    values = []
    for move in (-1, 1, 2):
        if place + move < cells:
            moved = _value(cells, max(0, place + move), left - 1, slip, best)
            values.append(slip * stay + (1 - slip) * moved)
        else:
            values.append(stay)
    return max(values) if best else sum(values) / 3


register("alleys/Alley", Alley)


# Each class below breaks the promise that its docstring names. ---------------------


class UnknownProgress(Alley):
    """gymnasium_accepts_the_text_layer"""

    def progress(self):
        return float("nan")


class OutOfSpace(Alley):
    """gymnasium_accepts_the_core"""

    def observe(self):
        return super().observe() + 100


class EveryObjectDiffers(Alley):
    """specs_survive_json"""

    count = itertools.count()

    def configure(self):
        super().configure()
        self.number = next(self.count)

    def begin(self, instance):
        super().begin(instance)
        self.cells += self.number


register("alleys/EveryObjectDiffers", EveryObjectDiffers)


class IntegerReward(Alley):
    """types_are_exact"""

    def apply(self, action):
        reward, scored, terminated, effective = super().apply(action)
        return int(reward), scored, terminated, effective


class NumpyFlag(Alley):
    """types_are_exact"""

    def apply(self, action):
        reward, scored, terminated, effective = super().apply(action)
        return reward, scored, np.bool_(terminated), effective


class LostReward(TextEnv):
    """types_are_exact"""

    def step(self, action, **more):
        *returned, info = super().step(action, **more)
        info["reward_parts"] = {"task": 0.25, "format": 0.0}
        return *returned, info


class Revives(Alley):
    """steps_outside_an_episode_are_refused"""

    def step(self, action):
        if self.instance is not None:
            self._playing = True
        return super().step(action)


class StepsUnreset(Alley):
    """steps_outside_an_episode_are_refused"""

    def step(self, action):
        if self.instance is None:
            self.reset(seed=0)
        return super().step(action)


class EndsEarly(Alley):
    """limits_truncate"""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.actions_taken == 2 and not terminated:
            truncated, self.truncated, self._playing = True, True, False
        return observation, reward, terminated, truncated, info


class NeverEnds(Alley):
    """limits_truncate"""

    def step(self, action):
        self.actions_taken = 0
        return super().step(action)


class OneBuffer(Alley):
    """returns_are_not_shared"""

    def configure(self):
        super().configure()
        self.buffer = np.zeros(2, np.int64)

    def observe(self):
        self.buffer[:] = super().observe()
        return self.buffer


class OneMask(Alley):
    """returns_are_not_shared"""

    def configure(self):
        super().configure()
        self.mask = np.ones(3, np.int8)

    def action_mask(self):
        return self.mask[:]


class MaskTooWide(Alley):
    """masks_are_true"""

    def action_mask(self):
        return np.ones(3, np.int8)


class IllegalMoves(Alley):
    """masks_are_true"""

    def step(self, action):
        if not self.is_legal(action):
            self.place -= 1
        return super().step(action)


class AlwaysEffective(Alley):
    """masks_are_true"""

    def apply(self, action):
        reward, scored, terminated, _ = super().apply(action)
        return reward, scored, terminated, True


class EveryEpisodeDiffers(Alley):
    """same_seed_same_episode"""

    count = itertools.count()

    def begin(self, instance):
        super().begin(instance)
        self.cells += next(self.count)


class SeedIgnored(Alley):
    """seeds_pick_instances"""

    def generate(self, stream):
        return {"cells": 9, "start": 2}

    def split_of_instance(self, instance):
        return self.split


class ZeroIsNone(Alley):
    """seeds_pick_instances"""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed or None, options=options)


class NoneIsZero(Alley):
    """seeds_pick_instances"""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed or 0, options=options)


class OptionsDropped(Alley):
    """options_are_honoured"""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class OptionsUnread(Alley):
    """options_are_honoured"""

    def reset(self, *, seed=None, options=None):
        known = {k: v for k, v in (options or {}).items() if k in ("rep", "instance")}
        return super().reset(seed=seed, options=known)


class InstanceIgnored(Alley):
    """options_are_honoured"""

    def reset(self, *, seed=None, options=None):
        options = dict(options or {})
        options.pop("instance", None)
        return super().reset(seed=seed, options=options)


class NoNoise(Alley):
    """rep_picks_the_noise"""

    def configure(self):
        super().configure()
        self.deterministic = False


class HiddenNoise(Alley):
    """rep_picks_the_noise"""

    def apply(self, action):
        if self.noise.random() < 0.5:
            return 0.0, 0.0, False, False
        return super().apply(action)


class SplitsMixed(Alley):
    """instances_are_in_their_split"""

    levels = {
        1: dataclasses.replace(Alley.levels[1], params=Params(cells=8)),
    }

    def split_of_instance(self, instance):
        return self.split


class SplitUnread(Alley):
    """instances_are_in_their_split"""

    def draw(self, seed):
        return {"cells": 9 + seed, "start": 2}


class SolvedAtStart(Alley):
    """instances_are_in_their_split"""

    def generate(self, stream):
        instance = super().generate(stream)
        return instance | {"start": instance["cells"] - 1}


class SharedMemory(Alley):
    """environments_are_independent"""

    last = [None]

    def begin(self, instance):
        super().begin(instance)
        self.last[0] = None

    def apply(self, action):
        if action == self.last[0]:
            return 0.0, 0.0, False, False
        self.last[0] = action
        return super().apply(action)


class GlobalDice(Alley):
    """global_randomness_is_untouched"""

    def begin(self, instance):
        super().begin(instance)
        random.random()


class GlobalNumpyDice(Alley):
    """global_randomness_is_untouched"""

    def begin(self, instance):
        super().begin(instance)
        np.random.rand()  # noqa: NPY002 - the flaw


class Forgets(Alley):
    """copies_go_on_alike"""

    def restore(self, state):
        pass


class NotJson(Alley):
    """copies_go_on_alike"""

    def dump(self):
        return np.int64(self.place)


class NotPickled(Alley):
    """copies_go_on_alike"""

    def configure(self):
        super().configure()
        self.move = lambda place: place + 1


class ClonesItself(Alley):
    """copies_go_on_alike"""

    def clone(self):
        return self


class FancyArrow(Alley):
    """texts_are_ascii"""

    def rules(self):
        return "Walk to the exit \u2192."


class SecretLimits(TextEnv):
    """rules_are_complete"""

    def rules(self):
        return super().rules().replace(str(self.limits.max_turns), "some")


class GoalForgotten(Alley):
    """text_can_be_read_back"""

    def from_text(self, text):
        cells = self.cells
        super().from_text(text)
        if self.style == "coord":
            self.cells = cells - 1


class FloorTooHigh(Alley):
    """values_are_in_order"""

    def random_value(self):
        return self.optimal_value() + 0.5


class IllegalAdvice(Alley):
    """values_are_in_order"""

    def optimal_action(self):
        return JUMP


class CeilingTooHigh(Alley):
    """optimal_play_keeps_its_promise"""

    def optimal_value(self):
        return super().optimal_value() + 0.5


class SlowOracle(Alley):
    """optimal_play_keeps_its_promise"""

    def optimal_action(self):
        return RIGHT


class LongPlans(Alley):
    """optimal_play_keeps_its_promise"""

    def plan(self, max_actions, turns_left):
        return [RIGHT] * (max_actions + 1)


class UnpaidSuccess(Alley):
    """success_is_scored"""

    def apply(self, action):
        _, _, terminated, effective = super().apply(action)
        return 0.0, 0.0, terminated, effective


class PaidFailure(Alley):
    """success_is_scored"""

    def apply(self, action):
        reward, _, terminated, effective = super().apply(action)
        return reward, reward + 0.1, terminated, effective


class HashDice(Alley):
    """other_processes_play_the_same"""

    def begin(self, instance):
        super().begin(instance)
        self.place = hash("alley") % (self.cells - 1)
