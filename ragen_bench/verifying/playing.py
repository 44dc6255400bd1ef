"""`Player`: the episodes of one run, replayed and looked at from all sides."""

import datetime
from collections.abc import Mapping

from ragen_bench.board import Board, Instance
from ragen_bench.chat import ChatAgent
from ragen_bench.errors import RagenError
from ragen_bench.instance_bank import Known, bank
from ragen_bench.model import Message
from ragen_bench.prompts import sha256_of_messages
from ragen_bench.records import CellPlan, Episode, RunConfig, RunRecord, sha256_of
from ragen_bench.registry import own_agent
from ragen_bench.verifying.consistency import Consistency, start_of, start_prompts
from ragen_bench.verifying.faults import Faults, Refusal, shown
from ragen_bench.verifying.overflow import max_context_of, must_have_fitted
from ragen_bench.verifying.rebuilding import Prompts
from ragen_bench.verifying.replay import Cell, replay
from ragen_bench.verifying.ties import Ties

_UNPLAYABLE = (RagenError, ArithmeticError, LookupError, TypeError, ValueError)
"""What making an environment raises over somebody's settings."""


def _bank_of(board: Board | None, config: RunConfig) -> Mapping[tuple[str, int], Known]:
    """Return what ships of a run's instances, if they are those of a board."""
    if board is None or dict(board.env_args) != dict(config.env_args):
        return {}
    return bank(board) if board.split == config.split else {}


class Player:
    """Plays episodes of a run again.

    Args:
        run: What ``run.json`` says.
        config: What the run is held to.
        board: Its board, if it has one.
        planned: Episodes of its list.
        faults: Takes the differences.
        warnings: Takes what is only worth a look.

    Attributes:
        actions: How many actions were played.

    Raises:
        Refusal: The settings cannot be played.
    """

    def __init__(
        self,
        run: RunRecord,
        config: RunConfig,
        board: Board | None,
        planned: int,
        faults: Faults,
        warnings: Faults,
    ) -> None:
        self.actions = 0
        self._run = run
        self._config = config
        self._board = board if config.sealed is None else None
        self._bank = _bank_of(self._board, config)
        self._faults = faults
        self._warnings = warnings
        self._agent = own_agent(config.agent)
        self._chat = self._agent is not None and issubclass(self._agent, ChatAgent)
        self._cells: dict[tuple[str, int], Cell] = {}
        self._prompts: dict[tuple[str, int], Prompts] = {}
        self._instances: dict[tuple[str, int], str] = {}
        now = datetime.datetime.now(datetime.UTC)
        began = start_of(run.started, now, faults)
        self._max_context = max_context_of(config, run.model_facts)
        self._consistency = Consistency(
            config,
            chat=self._chat,
            program=self._agent is not None and not self._chat,
            max_context=self._max_context,
            price=run.price,
            seconds=None if began is None else (now - began).total_seconds() + 86400,
        )
        told = config.agent_class != "solver"
        self._ties = Ties(planned) if told else None
        if self._agent is None:
            message = (
                f"{shown(config.agent)} does not come with ragen-bench: its moves, "
                "rewards and scores were replayed; its prompts and tokens were not "
                "checked, as nothing here can rebuild them, and its class "
                f"{config.agent_class!r} is its own word"
            )
            warnings.add("prompt_unchecked", "run.json", message)

    def play(self, episode: Episode) -> Episode:
        """Return an episode as it really went.

        Raises:
            Refusal: The settings cannot be played.
        """
        before = len(self._faults)
        cell = self._cell(episode.env_id, episode.level)
        try:
            played = replay(cell, episode, self._faults)
        except _UNPLAYABLE as error:
            raise self._unplayable(error) from error
        self.actions += played.action_count
        self._instances[episode.key.cell, episode.seed] = played.instance
        if len(self._faults) == before:
            if self._chat:
                self._prompts_of(cell).check(episode, self._faults)
                self._check_overflow(self._prompts_of(cell), episode)
            if self._ties is not None:
                self._ties.look(cell, episode)
        self._consistency.check(episode, self._faults)
        return played

    def _check_overflow(self, prompts: Prompts, episode: Episode) -> None:
        if episode.outcome != "context_overflow":
            return
        config = self._config
        reply = config.max_tokens or self._agent.default_max_tokens
        fault = must_have_fitted(prompts, episode, reply, self._max_context)
        if fault is not None:
            self._faults.add("outcome_mismatch", episode.key, fault)

    def finish(self) -> None:
        """Say what only the whole run shows."""
        self._consistency.finish(self._faults)
        if self._ties is not None:
            self._ties.finish(self._warnings)
        if self._agent is not None:
            found = {plan.cell: self._first_prompt(plan) for plan in self._config.cells}
            start_prompts(self._run.prompt_sha256, found, self._faults)
        if self._board is not None and self._board.digest:
            self._compare_digest(self._board)

    def _cell(self, env_id: str, level: int) -> Cell:
        cell = self._cells.get((env_id, level))
        if cell is None:
            try:
                cell = Cell(env_id, level, self._config, self._bank)
            except _UNPLAYABLE as error:
                raise self._unplayable(error) from error
            self._cells[env_id, level] = cell
        return cell

    def _prompts_of(self, cell: Cell) -> Prompts:
        name = cell.env_id, cell.level
        if name not in self._prompts:
            try:
                self._prompts[name] = Prompts(cell, self._agent, self._config)
            except _UNPLAYABLE as error:
                raise self._unplayable(error) from error
        return self._prompts[name]

    def _first_prompt(self, plan: CellPlan) -> str:
        """Return the hash of the first prompt of a cell's first episode."""
        cell = self._cell(plan.env_id, plan.level)
        observation, info, _ = cell.reset(plan.seeds[0], 0)
        if self._chat:
            return self._prompts_of(cell).begin(info["rules"]).prompt(observation, 0)
        return sha256_of_messages(
            [
                Message(role="system", content=info["rules"]),
                Message(role="user", content=observation),
            ]
        )

    def _compare_digest(self, board: Board) -> None:
        """Refuse if this version draws other instances than the board was frozen on."""
        found: Mapping[tuple[str, int], str] = self._instances
        listed = [
            Instance(plan.cell, board.split, seed, found.get((plan.cell, seed), ""))
            for plan in self._config.cells
            for seed in plan.seeds
        ]
        if all(instance.digest for instance in listed):
            digest = sha256_of(listed)
            if digest != board.digest:
                message = f"its instances have digest {digest}, not {board.digest}"
                self._faults.add("board_version", f"board {board.name}", message)

    def _unplayable(self, error: Exception) -> Refusal:
        return Refusal("bad_setting", "run.json", f"cannot be played: {error}")
