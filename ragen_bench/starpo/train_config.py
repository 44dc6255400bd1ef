"""`TrainConfig`: every setting of a training.

The parts of the trainer receive numbers and functions, never this object; only
`ragen_bench.starpo.loop` and what prepares it read it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from ragen_bench.starpo.aggregation import Aggregation
from ragen_bench.starpo.setting_rules import check, method_of

Filter = Literal[
    "all",
    "nonzero",
    "top_k",
    "top_p_linear",
    "top_p_softmax",
    "min_p",
    "ragen-v1",
    "ragen-v2",
    "ragen-v2-softmax",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What a training does.

    Presets change defaults, TOML changes presets, and ``--set`` changes TOML.
    """

    preset: str = ""
    """What the settings began with, empty for the defaults; `make` keeps it."""

    # What is trained, on what
    envs: tuple[str, ...] = ("ragen/Bandit-v0:1",)
    """Cells to train on, ``ID`` or ``ID:level``; groups take turns over them."""
    env_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of the environments."""
    model: str = "fresh"
    """``"fresh"`` (a small new Llama), ``"tiny"``, or a folder or hub id."""
    hidden_size: int = 64
    """Width of a fresh model; a multiple of 16."""
    layers: int = 2
    """Layers of a fresh model."""
    agent: str = "direct"
    """Chat agent whose prompts and protocol are trained."""
    prompt: Literal["full", "compact"] = "compact"
    """Length of the rules."""
    context: str = "full"
    """How much of the past a prompt holds."""
    max_tokens: int = 32
    """New tokens of a reply."""
    seed: int = 0
    """Of everything that is drawn."""

    # Rollout phase
    iterations: int = 100
    """Rollout and update phases."""
    groups: int = 8
    """Training instances of an iteration (P)."""
    rollouts: int = 16
    """Trajectories of an instance (N)."""
    engine: Literal["hf", "vllm"] = "hf"
    """What samples: ``"hf"``, of this package, or ``"vllm"``, for whole trainings on
    a GPU and models that a sampler of PyTorch is slow with."""
    engine_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the engine's copy of the weights; ``"auto"`` is float32 on a CPU and bfloat16
    on a GPU."""
    engine_kv_gib: float | None = None
    """GiB that vLLM takes for keys and values; None is a quarter of the free memory on
    a CPU, but 1 to 4, and nearly all that is left on a GPU."""
    temperature: float = 1.0
    """Of sampling, and of the log-probabilities that are trained."""
    max_actions_per_turn: int | None = None
    """Overrides the environment's; the budget of actions stays as it is."""
    format_penalty: float = -0.1
    """Added to the reward of an invalid reply, at most 0."""
    online: int = 1
    """Rollout batches are used for so many rounds of updates (Online-k)."""

    # Filter (StarPO-S)
    filter: Filter = "all"
    """Which groups are trained on, by the spread of their returns."""
    filter_value: float = 0.25
    """Share, probability mass or ratio of the filter."""
    filter_scale_free: bool = False
    """Whether spreads are divided by the largest first, so that rewards may have any
    unit."""
    filter_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the kept share scales the loss."""

    # Update phase
    algorithm: str = "grpo"
    """Name of an algorithm, or ``package.module:algorithm``."""
    minibatch: int = 0
    """Trajectories of an optimizer step; 0 is all that were kept."""
    passes: int = 1
    """Times that each kept trajectory is used in a round of updates; 0 leaves learning
    to self-imitation."""
    aggregation: Aggregation = "token-mean"
    """How the losses of tokens become one number."""
    clip_low: float = 0.2
    """Lower clip range of the ratio."""
    clip_high: float = 0.28
    """Upper clip range; StarPO-S raises it above the lower one."""
    clip_dual: float | None = None
    """Bound of the ratio where the advantage is negative, above 1."""
    kl: float = 0.0
    """Coefficient of the divergence from the model that training began with."""
    kl_kind: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    importance_cap: float | None = None
    """Truncates the weights between engine and trainer (TIS), and takes ratios to the
    trainer's own log-probabilities; None takes the engine's for the policy's."""
    gamma: float = 1.0
    """Discount between tokens."""
    lam: float = 1.0
    """Lambda of the generalised advantage estimate."""
    gamma_turn: float = 1.0
    """Discount between turns."""
    value_clip: float = 0.5
    """Clip range of the value loss."""
    critic_lr: float = 1e-5
    """Learning rate of the critic."""
    critic_warmup: int = 0
    """Iterations that train the critic alone."""

    # Optimizer
    lr: float = 1e-6
    """Learning rate of the policy."""
    warmup: int = 0
    """Optimizer steps of linear warm-up."""
    decay: Literal["none", "linear", "cosine"] = "none"
    """How learning rates fall to zero over the iterations, or over the CPU seconds
    behind the warm start where those are used up sooner."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    weight_decay: float = 0.01
    """Of AdamW."""
    grad_clip: float = 1.0
    """Largest norm of a gradient."""
    token_budget: int = 16384
    """Padded tokens of a forward pass."""

    # Warm start
    clone_seconds: float = 0.0
    """CPU seconds of behaviour cloning before the first iteration."""
    clone_steps: int = 0
    """Optimizer steps of behaviour cloning; 0 leaves the seconds to decide."""
    clone_episodes: int = 0
    """Demonstrations, used again in random order; 0 plays new ones without end."""
    clone_noise: float = 0.3
    """Share of the expert's turns whose actions are random."""
    clone_mistakes: bool = False
    """Whether those are learned too, as the play of somebody who errs."""
    clone_lr: float = 3e-3
    """Peak learning rate of behaviour cloning."""
    clone_batch: int = 64
    """Trajectories of a step of behaviour cloning."""

    # Self-imitation
    imitate_steps: int = 0
    """Steps of self-imitation after each update phase: the policy clones its own best
    trajectories; 0 is none."""
    imitate_batch: int = 32
    """Trajectories of such a step."""
    imitate_memory: int = 4096
    """Own trajectories that are remembered, the newest; the demonstrations of a warm
    start whose number is limited always are."""
    imitate_lr: float = 1e-3
    """Learning rate of self-imitation; it falls as that of the policy does."""

    # Machine
    device: str = "auto"
    """As PyTorch calls it; ``"auto"`` is a GPU if there is one."""
    threads: int = 1
    """Cores that PyTorch uses on a CPU."""
    lora_rank: int = 0
    """Rank of a LoRA adapter that is trained in place of the weights; 0 is none."""

    # Around
    eval_every: int = 0
    """Iterations between evaluations on the dev split; 0 is none."""
    eval_seeds: int = 64
    """Episodes a cell of an evaluation."""
    save_every: int = 50
    """Iterations between checkpoints; 0 saves at the end alone."""
    keep_rollouts: tuple[int, ...] = ()
    """Iterations whose episodes are kept as records."""
    budget_seconds: float = 0.0
    """CPU seconds after which training ends early, cloning included; 0 is none."""
    sinks: tuple[str, ...] = ()
    """Where metrics go beside the files: ``"tensorboard"``, ``"wandb"``, or
    ``"package.module:function"``."""
    stop_on_collapse: bool = False
    """Whether an alarm of the echo trap ends training."""
    probe_every: int = 0
    """Iterations between probes of whether replies still depend on their prompts, from
    the first iteration on; 0 is none."""
    probe_samples: int = 64
    """Replies that such a probe scores after each other's prompts."""
    gradient_every: int = 0
    """Iterations between rows of ``gradients.csv``, from the first iteration on; 0 is
    none."""

    @property
    def method(self) -> str:
        """What learns from play, in words."""
        return method_of(self.algorithm, self.passes, self.imitate_steps)

    def __post_init__(self) -> None:
        names = (field.name for field in dataclasses.fields(self))
        check({name: getattr(self, name) for name in names})
