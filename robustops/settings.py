"""Settings of the commands: plain dataclasses, one a config group and one a command.

Commands build them from the composed config; everything below takes them (or single values of them) and
knows nothing of Hydra. Lengths are in tokens, rates are per optimiser step, unless a docstring says
otherwise. What types cannot express (choices, lower bounds) stands beside the field and is enforced by
`robustops.validation.validate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CONDITIONS = ("clean", "fault", "heldout")
POLICIES = ("base", "sft", "grpo")
STAGES = ("sft", "grpo")
TOOL_CONFIGS = ("oracle", "plus5")
SPLITS = ("train", "val", "test")


def one_of(default: str, *choices: str) -> Any:
    """A field with a closed set of values."""
    return field(default=default, metadata={"choices": (default, *choices)})


def some_of(default: tuple[str, ...], choices: tuple[str, ...]) -> Any:
    """A list field whose items come from a closed set, each at most once."""
    return field(default_factory=lambda: list(default), metadata={"choices": choices})


def at_least(low: float, default: float | None) -> Any:
    """A number, or list of numbers, with a lower bound; None where the type allows it."""
    return field(default=default, metadata={"low": low})


@dataclass
class DomainSettings:
    """A world and its tasks. detail: brief | full replies; database: file of the start state of every
    task (None: generated from the task's seed at `size`); train, val, test: number of tasks in each
    split; tool_configs: rows a task expands to; seed: of the task catalogue.
    """

    name: str = "itsm"
    detail: str = one_of("brief", "full")
    database: str | None = None
    size: str = "small"
    train: int = at_least(0, 400)
    val: int = at_least(0, 60)
    test: int = at_least(0, 150)
    tool_configs: list[str] = some_of(TOOL_CONFIGS, TOOL_CONFIGS)
    seed: int = 0


@dataclass
class FaultSettings:
    """Tool faults. subtypes: mechanisms the scheduler may inject (empty: none); caps: pairs
    (repetition cap, weight) it draws from; manifest: file of frozen assignments, used instead of drawing.
    """

    name: str = "none"
    subtypes: list[str] = field(default_factory=list)
    caps: list[Any] = field(default_factory=lambda: [[1, 0.6], [2, 0.3], [3, 0.1]])
    manifest: str | None = None


@dataclass
class RewardNormSettings:
    """Order of normalisation: aggregate (sum, then normalise) | component (normalise, then sum)."""

    name: str = one_of("component", "aggregate")


@dataclass
class HardwareSettings:
    """What Lightning's Trainer gets. threads: CPU threads of torch, 0 = all cores."""

    name: str = "cpu"
    accelerator: str = "cpu"
    devices: int = at_least(1, 1)
    num_nodes: int = at_least(1, 1)
    strategy: str = "auto"
    precision: str = "32-true"
    threads: int = at_least(0, 0)


@dataclass
class ModelSettings:
    """The policy. source: folder | gguf_package | hub; checkpoint: a folder of weights (None: those the
    source names); hub_id: model id where source=hub.
    """

    name: str = "tiny"
    source: str = one_of("folder", "gguf_package", "hub")
    checkpoint: str | None = None
    hub_id: str | None = None
    dtype: str = one_of("float32", "bfloat16")
    context_tokens: int = at_least(2, 1536)
    answer_tokens: int = at_least(1, 96)
    max_turns: int = at_least(1, 14)
    gradient_checkpointing: bool = False


@dataclass
class SamplerSettings:
    """How text is generated. max_in_flight: episodes open at once; prefill_tokens: most tokens of one
    prefill pass (hf); memory_fraction: of the device for the engine
    (vllm); base_url, model, api_key_env, timeout_s, retries: the endpoint (openai).
    """

    name: str = one_of("hf", "vllm", "openai", "scripted")
    temperature: float = at_least(0, 1.0)
    max_in_flight: int = at_least(1, 64)
    prefill_tokens: int = at_least(1, 8192)
    memory_fraction: float = 0.4
    base_url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 120.0
    retries: int = at_least(0, 3)


@dataclass
class RewardSettings:
    """Weights of the parts: R = success S + progress P + quality Q."""

    name: str = "default"
    success: float = at_least(0, 1.0)
    progress: float = at_least(0, 0.3)
    quality: float = at_least(0, 0.1)


@dataclass
class SFTSettings:
    """Supervised stage. tasks: expert trajectories to collect (None: one a training case); fault_share:
    share of them that meet a tool fault; batch_trajectories: per step; micro_batch_tokens: padded
    tokens of one forward pass; warmup_steps: linear; max_steps: cuts the epochs short.
    """

    name: str = "default"
    epochs: int = at_least(1, 3)
    max_steps: int | None = at_least(1, None)
    tasks: int | None = at_least(1, None)
    fault_share: float = at_least(0, 0.5)
    batch_trajectories: int = at_least(1, 8)
    micro_batch_tokens: int = at_least(1, 8192)
    learning_rate: float = at_least(0, 3e-6)
    warmup_steps: int = at_least(0, 10)
    weight_decay: float = at_least(0, 0.01)
    grad_clip: float = at_least(0, 1.0)
    checkpoint_every: int = at_least(1, 50)


@dataclass
class GRPOSettings:
    """Reinforcement stage. groups, fault_groups: clean and fault groups a step, of group_size episodes;
    schedule: of the learning rate after warmup_steps, constant | linear (to a tenth); adam_epsilon: see
    `learning.optimisation.adamw`;
    kl: coefficient to the SFT policy; clip_low, clip_high: ratio bounds 1 - low and 1 + high;
    aggregation: what weighs the same in the loss of a flow, token (long episodes weigh more) |
    trajectory; refill_rounds: extra rounds of sampling for groups without signal; checkpoint_every: steps.
    """

    name: str = "default"
    steps: int = at_least(1, 120)
    groups: int = at_least(0, 16)
    fault_groups: int = at_least(0, 16)
    group_size: int = at_least(2, 4)
    learning_rate: float = at_least(0, 1e-6)
    schedule: str = one_of("constant", "linear")
    warmup_steps: int = at_least(0, 0)
    adam_epsilon: float = at_least(0, 1e-8)
    weight_decay: float = at_least(0, 0.0)
    grad_clip: float = at_least(0, 1.0)
    kl: float = at_least(0, 0.001)
    clip_low: float = at_least(0, 0.2)
    clip_high: float = at_least(0, 0.28)
    aggregation: str = one_of("token", "trajectory")
    refill_rounds: int = at_least(0, 2)
    micro_batch_tokens: int = at_least(1, 8192)
    checkpoint_every: int = at_least(1, 10)


@dataclass
class MonitorSettings:
    """Run monitor: off | observe (scores each step, changes nothing)."""

    name: str = one_of("off", "observe")


@dataclass
class LoggerSettings:
    """csv | tensorboard | wandb | none. group: gathers the runs of a sweep; offline: W&B stays on disk."""

    name: str = one_of("csv", "tensorboard", "wandb", "none")
    project: str = "robustops"
    group: str | None = None
    offline: bool = True


@dataclass
class PathsSettings:
    """run_dir: the run folder; what a run writes, it writes there."""

    run_dir: str = "."


@dataclass
class EvaluationSettings:
    """What is measured. policies: of base, sft, grpo; conditions: of clean, fault, heldout; attempts:
    episodes a case (pass@k is reported up to that k); cases: number of cases (None: all of the split);
    manifest_seed: fixes the fault assignments that all policies share.
    """

    split: str = one_of("test", "val", "train")
    policies: list[str] = some_of(POLICIES, POLICIES)
    conditions: list[str] = some_of(CONDITIONS, CONDITIONS)
    attempts: int = at_least(1, 1)
    cases: int | None = at_least(1, None)
    temperature: float = at_least(0, 1.0)
    manifest_seed: int = 0


@dataclass
class CommandSettings:
    """What every command takes. format: text | json; progress: show progress bars."""

    seed: int = 0
    format: str = one_of("text", "json")
    progress: bool = True
    paths: PathsSettings = field(default_factory=PathsSettings)


@dataclass
class PolicyCommandSettings(CommandSettings):
    """What every command takes that runs a policy on tasks."""

    domain: DomainSettings = field(default_factory=DomainSettings)
    fault: FaultSettings = field(default_factory=FaultSettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    reward: RewardSettings = field(default_factory=RewardSettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)


@dataclass
class TrainSettings(PolicyCommandSettings):
    """`robustops train`. stages: of sft, grpo, in this order; resume: a run folder to go on with."""

    stages: list[str] = some_of(STAGES, STAGES)
    resume: str | None = None
    reward_norm: RewardNormSettings = field(default_factory=RewardNormSettings)
    sft: SFTSettings = field(default_factory=SFTSettings)
    grpo: GRPOSettings = field(default_factory=GRPOSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)


@dataclass
class EvaluateSettings(PolicyCommandSettings):
    """`robustops evaluate`. run: the run folder whose `checkpoints/` hold the sft and grpo policies;
    policies, split: as in `evaluation`, which takes them over.
    """

    run: str | None = None
    policies: list[str] = some_of(("base",), POLICIES)
    split: str = one_of("test", "val", "train")


@dataclass
class CollectSettings(PolicyCommandSettings):
    """`robustops collect`. tasks: how many cases of the split (None: all); attempts: episodes a case;
    fault_share: share of the cases that meet a tool fault; out: JSONL file in the run folder.
    """

    split: str = one_of("train", "val", "test")
    tasks: int | None = at_least(1, None)
    attempts: int = at_least(1, 1)
    fault_share: float = at_least(0, 0.5)
    out: str = "demonstrations.jsonl"


@dataclass
class ServeSettings(CommandSettings):
    """`robustops serve`. transport: stdio | http; task: a task id whose start state, tools and acting
    user are served (None: the generated world with all tools); admin: offer reset and evaluation too.
    """

    domain: DomainSettings = field(default_factory=DomainSettings)
    protocol: str = one_of("mcp")
    transport: str = one_of("stdio", "http")
    host: str = "127.0.0.1"
    port: int = 8931
    task: str | None = None
    admin: bool = False


@dataclass
class TasksSettings(CommandSettings):
    """`robustops tasks`. out: folder to write (None: data/tasks/<domain>); verify: run the scripted
    expert on every task, clean and under every fault subtype.
    """

    domain: DomainSettings = field(default_factory=DomainSettings)
    out: str | None = None
    verify: bool = False


@dataclass
class ReplaySettings(CommandSettings):
    """`robustops replay`. calls: JSONL of recorded calls; database: start state; out: JSONL to write."""

    domain: DomainSettings = field(default_factory=DomainSettings)
    calls: str | None = None
    database: str | None = None
    out: str | None = None


@dataclass
class DoctorSettings(CommandSettings):
    """`robustops doctor`."""
