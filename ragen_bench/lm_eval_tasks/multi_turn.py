"""`RagenTask`: a board or a cell as a task of lm-eval, played over many turns.

lm-eval knows one request for each document.  That is the first turn of an episode;
the other turns are played when lm-eval asks the task to filter the answers, a batch
each turn.  The model comes with the chat template that lm-eval hands to the task.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.config.task import TaskConfig

from ragen_bench.errors import InvalidSpec
from ragen_bench.lm_eval_tasks.lockstep import Lockstep, Pending
from ragen_bench.lm_eval_tasks.metrics import Aggregation, Value, metrics, values
from ragen_bench.lm_eval_tasks.task_settings import folder_of, plan_of
from ragen_bench.model import Message, Sampling
from ragen_bench.plan import Plan
from ragen_bench.provenance import commit, versions
from ragen_bench.records import Episode, EpisodeKey, RunRecord, parse_record
from ragen_bench.registry import make_model
from ragen_bench.run_folder import RunFolder
from ragen_bench.scoring import summarise

_FILTER = "none"
_NOTHING = Message(role="user", content="Say nothing.")


class RagenTask(Task):  # type: ignore[misc]
    """The episodes of a board or of one cell.

    Args:
        config: What the YAML file says; ``metadata`` holds the settings.
    """

    OUTPUT_TYPE = "generate_until"

    def __init__(self, config: Mapping[str, Any]) -> None:
        # Task's own constructor loads a data set, which there is none of.
        self._metadata: dict[str, Any] = dict(config.get("metadata") or {})
        self.VERSION = self._metadata.get("version", 1)
        self._plan = plan_of(self._metadata, "lm-eval")
        self._generation = _generation(self._plan)
        said = {key: value for key, value in config.items() if key != "class"}
        said["generation_kwargs"] = dict(self._generation)
        self._config = TaskConfig(**said)
        keys = self._plan.config.keys()
        # As in a run: a limit on the documents still sees every cell.
        self._keys = sorted(keys, key=lambda key: (key.rep, key.seed))
        self._metrics = metrics(self._plan.config, self._cells_without_success())
        self._summaries: dict[frozenset[str], Any] = {}
        self._instances: list[Instance] = []
        self._first: dict[str, Pending] = {}
        self._finished: dict[str, Episode] = {}
        self._held = contextlib.ExitStack()

    # What lm-eval asks before it asks the model ----------------------------------

    def has_training_docs(self) -> bool:
        """Return that there are none."""
        return False

    def has_validation_docs(self) -> bool:
        """Return that there are none."""
        return False

    def has_test_docs(self) -> bool:
        """Return that there are documents."""
        return True

    def test_docs(self) -> list[dict[str, Any]]:
        """Return one document for each episode."""
        return [{"episode": str(key), **key._asdict()} for key in self._keys]

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """Return which episode a document is."""
        return str(doc["episode"])

    def doc_to_target(self, doc: Mapping[str, Any]) -> str:
        """Return nothing: no answer is known beforehand."""
        return ""

    def build_all_requests(self, **options: Any) -> None:
        """Begin the episodes and make requests of their first questions.

        Raises:
            InvalidSpec: lm-eval is called in a way that cannot be played.
        """
        lm = self._model_behind(options)
        chosen = ("rank", "world_size", "limit", "samples")
        docs = self.doc_iterator(**{name: options.get(name) for name in chosen})
        keys = [self._key(doc) for _, doc in docs]
        name = f"lm-eval:{type(lm).__name__}"
        self._adapter: Any = make_model(name, lm=lm)
        self._plan = dataclasses.replace(self._plan, model=self._adapter)
        self._plan.agent()
        if folder_of(self._metadata) is not None and options["world_size"] > 1:
            raise InvalidSpec("out is one process's folder; leave it out with several")
        self._open_folder()
        owed = [key for key in keys if str(key) not in self._finished]
        self._game = Lockstep(self._plan, owed)
        self._held.callback(self._game.close)
        try:
            for pending in self._game.begin():
                self._first[pending.episode] = pending
            super().build_all_requests(**{**options, "cache_requests": False})
        except BaseException:
            self._held.close()
            raise

    def fewshot_context(self, doc: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        """Return the first prompt of an episode."""
        return self._question(doc).context

    def construct_requests(
        self, doc: Mapping[str, Any], ctx: Any, **options: Any
    ) -> Instance:
        """Return the request for the first reply of an episode."""
        question = self._question(doc)
        arguments = dict(question.arguments)
        if self._plays_itself(doc):
            arguments["max_gen_toks"] = 1
        return Instance(
            request_type="generate_until",
            doc=doc,
            arguments=(ctx, arguments),
            idx=0,
            metadata=options["metadata"],
        )

    # What lm-eval asks afterwards -------------------------------------------------

    def apply_filters(self) -> "RagenTask":
        """Play the episodes to their end; an answer becomes the whole episode."""
        with self._held:
            waiting = self._game.go_on([*self._first_answers()])
            self._keep()
            while waiting:
                asked = [pending.question for pending in waiting]
                answers = self._adapter.answer(asked)
                waiting = self._game.go_on([*zip(waiting, answers, strict=True)])
                self._keep()
            self._close_folder()
        for instance in self._instances:
            episode = self._finished[instance.doc["episode"]]
            instance.filtered_resps[_FILTER] = episode.model_dump_json()
        return self

    def process_results(
        self, doc: Mapping[str, Any], results: Sequence[Any]
    ) -> dict[str, Value | None]:
        """Return the values of one episode.

        Raises:
            InvalidSpec: This lm-eval did not let the task play.
        """
        if not (results and isinstance(results[0], str) and self._finished):
            raise _stranger("does not filter the answers before it scores them")
        episode = parse_record(Episode, results[0], f"the answer to {doc['episode']}")
        return values(self._metrics, episode)

    def aggregation(self) -> dict[str, Callable[..., Any]]:
        """Return for each metric what makes one number of its values."""
        return {
            metric.name: Aggregation(metric, self._plan.config, self._summaries)
            for metric in self._metrics
        }

    def higher_is_better(self) -> dict[str, bool]:
        """Return for each metric whether more is better."""
        return {metric.name: metric.higher_is_better for metric in self._metrics}

    # Details ----------------------------------------------------------------------

    def _model_behind(self, options: Mapping[str, Any]) -> Any:
        """Return lm-eval's model object."""
        template = options.get("chat_template")
        if template is None:
            raise InvalidSpec(
                f"task {self._config.task!r} is a conversation: add "
                "--apply_chat_template"
            )
        if options.get("system_instruction"):
            raise InvalidSpec(
                "the rules are the system message; leave --system_instruction out"
            )
        if self._config.num_fewshot:
            raise InvalidSpec(
                f"leave --num_fewshot {self._config.num_fewshot} out; --metadata "
                "'{\"shots\": N}' puts solved examples into the prompt"
            )
        if self._config.generation_kwargs != self._generation:
            raise InvalidSpec(
                f"leave --gen_kwargs {self._config.generation_kwargs} out; --metadata "
                "takes temperature, top_p and max_tokens"
            )
        lm = getattr(template, "__self__", None)
        if not callable(getattr(lm, "generate_until", None)):
            raise _stranger("hands over a chat template that belongs to no model")
        return lm

    def _cells_without_success(self) -> list[str]:
        found = []
        for cell in self._plan.config.cells:
            env = self._plan.env(cell.env_id, cell.level)
            env.reset(seed=cell.seeds[0])
            if env.core.success is None:
                found.append(cell.cell)
        return found

    def _key(self, doc: Mapping[str, Any]) -> EpisodeKey:
        return EpisodeKey(**{name: doc[name] for name in EpisodeKey._fields})

    def _question(self, doc: Mapping[str, Any]) -> Any:
        """Return what is asked for a document.

        An episode that ended before its first question still needs a request.
        """
        pending = self._first.get(doc["episode"])
        if pending is not None:
            return pending.question
        return self._adapter.caller.prepare([_NOTHING], Sampling(max_tokens=1), 0)

    def _plays_itself(self, doc: Mapping[str, Any]) -> bool:
        """Return whether lm-eval's own answer to a request is not used.

        It draws a batch from one generator; a reply must depend on its seed alone.
        """
        pending = self._first.get(doc["episode"])
        if pending is None:
            return True
        return pending.question.seed is not None and not self._adapter.caller.served

    def _first_answers(self) -> list[tuple[Pending, Any]]:
        """Return the answers to the first questions."""
        found = []
        for instance in self._instances:
            pending = self._first.get(instance.doc["episode"])
            if pending is None:
                continue
            if not instance.resps:
                raise _stranger("filters the answers before it has any")
            if self._plays_itself(instance.doc):
                answer = self._adapter.answer([pending.question])[0]
            else:
                answer = self._adapter.accept(pending.question, instance.resps[0])
            found.append((pending, answer))
        return found

    def _open_folder(self) -> None:
        """Open the run folder that is asked for, and take what it holds already."""
        out = folder_of(self._metadata)
        self._folder: RunFolder | None = None
        if out is None:
            return
        record = RunRecord(
            config=self._plan.config,
            versions=versions(),
            commit=commit(),
            model_facts=self._plan.model_facts(),
            prompt_sha256=self._plan.prompt_hashes(),
            command=None,
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        )
        self._folder = self._held.enter_context(RunFolder(out, record))
        for episode in self._folder.episodes():
            self._finished[str(episode.key)] = episode

    def _keep(self) -> None:
        """Take the episodes that have ended."""
        for episode in self._game.take_episodes():
            self._finished[str(episode.key)] = episode
            if self._folder is not None:
                self._folder.append(episode)

    def _close_folder(self) -> None:
        if self._folder is not None:
            summary = summarise(self._plan.config, self._folder.episodes())
            self._folder.write_summary(summary)


def _generation(plan: Plan) -> dict[str, Any]:
    """Return how replies are drawn, as lm-eval shows it."""
    config = plan.config
    return {
        "until": list(Sampling().stop),
        "max_gen_toks": config.max_tokens,
        "do_sample": config.temperature > 0,
        "temperature": config.temperature,
    }


def _stranger(why: str) -> InvalidSpec:
    from ragen_bench.registry import load_module

    version = getattr(load_module("lm_eval", "lm-eval"), "__version__", "?")
    return InvalidSpec(
        f"lm-eval {version} {why}, but these tasks rest on it; use lm_eval 0.4.13, or "
        "ragen-bench run --model lm-eval:TYPE"
    )
