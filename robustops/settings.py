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
#: Types of run faults in five families (RFT-FaultBench, table I).
RUN_FAULTS = (
    *("reward_spike", "reward_collapse", "reward_hacking"),
    *("empty_response", "repetition_collapse", "length_short", "length_long"),
    *("kl_explosion", "update_freeze", "entropy_collapse"),
    *("value_mismatch", "advantage_instability", "delayed_credit"),
    *("tool_call_error", "observation_corruption", "termination_error"),
)


#: Who steps in, in the remediation cases of RFT-FaultBench: planners, and a run that is made once more.
ARMS = ("rules", "llm", "oracle", "random", "rollback", "noop", "rerun")


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
    split; tool_configs: rows a task expands to; tool_timeout_s: seconds after which a call without an answer
    ends as an error reply (null: never); tool_retries: how often a call that a tool out of order refused
    (TOOL_UNAVAILABLE, not executed) is made again; check_replies: a reply that is not what the world said,
    by its digest, is fetched again; reread_calls: a call that was refused as unreadable, although its message
    holds one that can be read, is made after all; seed: of the task catalogue.
    """

    name: str = "itsm"
    detail: str = one_of("brief", "full")
    database: str | None = None
    size: str = "small"
    train: int = at_least(0, 400)
    val: int = at_least(0, 60)
    test: int = at_least(0, 150)
    tool_configs: list[str] = some_of(TOOL_CONFIGS, TOOL_CONFIGS)
    tool_timeout_s: float | None = at_least(0.01, 30.0)
    tool_retries: int = at_least(0, 0)
    check_replies: bool = False
    reread_calls: bool = False
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
    """Where training runs. accelerator: cpu | gpu; devices: of each of num_nodes machines, with one process a
    device; strategy: auto | ddp | deepspeed_stage_2 | deepspeed_stage_3, the latter two also with _offload
    (optimiser state, and parameters of stage 3, in CPU memory); precision: 32-true | bf16-mixed | bf16-true;
    threads: CPU threads of torch in each process, 0 = a fair share of the cores.
    """

    name: str = "cpu"
    accelerator: str = "cpu"
    devices: int = at_least(1, 1)
    num_nodes: int = at_least(1, 1)
    strategy: str = "auto"
    precision: str = "32-true"
    threads: int = at_least(0, 0)


@dataclass
class LoRASettings:
    """Low-rank adapters. rank: 0 trains all weights; alpha: their scale is alpha / rank; targets: names of
    linear layers (empty: all but the output head).
    """

    rank: int = at_least(0, 0)
    alpha: float = at_least(0, 16.0)
    targets: list[str] = field(default_factory=list)


@dataclass
class ModelSettings:
    """The policy. source: folder | gguf_package | hub; checkpoint: a folder of weights (None: those the
    source names); min_turns: turns before which no environment ends an episode; max_answers: the final
    answer that ends an episode even where its environment goes on (null: the environment is believed);
    hub_id: model id where source=hub; architecture: model_type and shape of the transformers config, for
    sizes where no weights are at hand.
    """

    name: str = "tiny"
    source: str = one_of("folder", "gguf_package", "hub")
    checkpoint: str | None = None
    hub_id: str | None = None
    dtype: str = one_of("float32", "bfloat16")
    context_tokens: int = at_least(2, 1536)
    answer_tokens: int = at_least(1, 96)
    max_turns: int = at_least(1, 14)
    min_turns: int = at_least(0, 0)
    max_answers: int | None = at_least(1, None)
    gradient_checkpointing: bool = False
    lora: LoRASettings = field(default_factory=LoRASettings)
    architecture: dict[str, Any] = field(default_factory=dict)


@dataclass
class SamplerSettings:
    """How text is generated. max_in_flight: episodes open at once; episode_retries: further attempts at an
    episode that the sampler or its world failed, for at most the share retry_share of the episodes;
    prefill_tokens: most tokens of one prefill pass (hf); memory_fraction: of the device for the engine,
    sleep_level: what it gives up while the trainer works, 0 nothing | 1 its cache, weights go to host memory
    | 2 its cache and weights (vllm); urls: of running servers, weight_transfer: how new weights reach them,
    disk | nccl, sync_folder: where they travel on disk, null is the run folder (vllm_server); base_url,
    model: the endpoint (openai); api_key_env, timeout_s, retries: of requests (openai, vllm_server);
    min_new_tokens: shortest message without its stop token (a shorter one is a failure of the engine);
    repetition_penalty: on tokens that the message has already, 1: none (hf).
    """

    name: str = one_of("hf", "vllm", "vllm_server", "openai", "scripted")
    temperature: float = at_least(0, 1.0)
    max_in_flight: int = at_least(1, 64)
    episode_retries: int = at_least(0, 1)
    retry_share: float = at_least(0, 0.25)
    prefill_tokens: int = at_least(1, 8192)
    memory_fraction: float = 0.4
    sleep_level: int = at_least(0, 0)
    urls: list[str] = field(default_factory=list)
    weight_transfer: str = one_of("disk", "nccl")
    sync_folder: str | None = None
    base_url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = 120.0
    retries: int = at_least(0, 3)
    min_new_tokens: int = at_least(0, 0)
    repetition_penalty: float = at_least(1, 1.0)


@dataclass
class RewardSettings:
    """Weights of the parts: R = success S + progress P + quality Q. gated: a check counts for progress only
    with all its prerequisites; bounded: parts are held to their ranges (winsorised); recheck: the parts
    are computed once more, from an episode's own records and state checks.
    """

    name: str = "default"
    success: float = at_least(0, 1.0)
    progress: float = at_least(0, 0.3)
    quality: float = at_least(0, 0.1)
    gated: bool = True
    bounded: bool = False
    recheck: bool = False


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
class CreditSettings:
    """Local credit on token spans; null switches a cap off, `enabled=false` all of it. bad_cap: on bad calls,
    no-progress reads from occurrence `repeats` on among them; stop_cap: on the stop of a failed episode;
    cut_cap: on a message cut off at its token budget; quality: how the quality share of an advantage is
    spread, to_go (on messages that calls follow from) | uniform.
    """

    enabled: bool = True
    bad_cap: float | None = -0.5
    stop_cap: float | None = 0.0
    cut_cap: float | None = 0.0
    repeats: int | None = at_least(2, 3)
    quality: str = one_of("to_go", "uniform")


@dataclass
class GRPOSettings:
    """Reinforcement stage. groups, fault_groups: clean and fault groups a step, of group_size episodes;
    refill_rounds: extra rounds of sampling for groups without signal; dynamic_sampling: false trains on
    these, too; zero_signal_wait: steps until a silent case may return (null: never), zero_signal_capacity:
    how many wait at most; case_draw: every case in turn (even), or those of templates whose groups compare
    something more often (signal); curriculum: weights of templates by step, see `tasks.curriculum`; whiten:
    z-score over the batch; epochs, mini_batches: a step takes epochs x mini_batches optimiser updates on its
    episodes; schedule: of the learning rate after warmup_steps, constant | linear (to a tenth, from step
    decay_from on; 0: at once); adam_epsilon: see `learning.optimisation.adamw`; kl: coefficient to the SFT
    policy, kl_estimator: k3 | k1; clip_low, clip_high: ratio bounds 1 - low and 1 + high; importance_cap:
    truncated importance sampling against the mismatch of sampler and trainer (null: off); aggregation: what
    weighs the same in the loss of a flow, token (long episodes weigh more) | trajectory; overlong: episodes
    cut off by a token budget are trained (keep) or left out of the loss (mask); staleness: 1 samples the next
    step's episodes while this one trains, with weights one step older; sync_tolerance: largest difference of
    log-probs between sampler and trainer after new weights (null: by precision), sync_guard: what a larger
    one does, stop the run | resync (hand the weights over once more) | report; entropy: weight of an entropy
    bonus in the loss; advantage_guard: none | centre (groups' means are subtracted) | consistent (signs that
    contradict the reward become 0) | recompute (anew from the rewards), advantage_clip: largest absolute
    advantage (null: none); baseline: what rewards of a group are compared with, the mean of all of them | of
    the others (leave_one_out); std_floor: least deviation that a group's rewards are divided by; value_head:
    rewards are compared with a learned
    value of the start state instead, value_learning_rate: its own, value_least_ev: explained variance below
    which group means are used all the same (null: never; above 1: always); regroup: which episodes are
    compared is read off the episodes, not off the batch; even_credit: every token ends with its episode's
    advantage, whatever local credit gave it; whole_updates: right before an optimiser update it is seen to
    that it is made, of all weights with a gradient, at the schedule's rate; share_prefix: the trainer
    computes what the episodes of a group have in common once; checkpoint_every: steps; keep_checkpoints: what
    a resume needs | all (a run may branch from any of them, also after its end).
    """

    name: str = "default"
    steps: int = at_least(1, 120)
    groups: int = at_least(0, 16)
    fault_groups: int = at_least(0, 16)
    group_size: int = at_least(2, 4)
    refill_rounds: int = at_least(0, 2)
    dynamic_sampling: bool = True
    zero_signal_wait: int | None = at_least(1, 10)
    zero_signal_capacity: int = at_least(1, 256)
    case_draw: str = one_of("even", "signal")
    curriculum: list[Any] = field(default_factory=list)
    whiten: bool = True
    epochs: int = at_least(1, 1)
    mini_batches: int = at_least(1, 1)
    learning_rate: float = at_least(0, 1e-6)
    schedule: str = one_of("constant", "linear")
    decay_from: int = at_least(0, 0)
    warmup_steps: int = at_least(0, 0)
    adam_epsilon: float = at_least(0, 1e-8)
    weight_decay: float = at_least(0, 0.0)
    grad_clip: float = at_least(0, 1.0)
    kl: float = at_least(0, 0.001)
    kl_estimator: str = one_of("k3", "k1")
    clip_low: float = at_least(0, 0.2)
    clip_high: float = at_least(0, 0.28)
    importance_cap: float | None = at_least(0, 2.0)
    aggregation: str = one_of("token", "trajectory")
    overlong: str = one_of("keep", "mask")
    credit: CreditSettings = field(default_factory=CreditSettings)
    staleness: int = at_least(0, 0)
    sync_tolerance: float | None = at_least(0, None)
    sync_guard: str = one_of("stop", "resync", "report")
    entropy: float = at_least(0, 0.0)
    advantage_guard: str = one_of("none", "centre", "consistent", "recompute")
    advantage_clip: float | None = at_least(0, None)
    baseline: str = one_of("group_mean", "leave_one_out")
    std_floor: float = at_least(0, 0.0)
    value_head: bool = False
    value_learning_rate: float = at_least(0, 0.01)
    value_least_ev: float | None = None
    regroup: bool = False
    even_credit: bool = False
    whole_updates: bool = False
    micro_batch_tokens: int = at_least(1, 8192)
    share_prefix: bool = True
    checkpoint_every: int = at_least(1, 10)
    keep_checkpoints: str = one_of("resume", "all")


@dataclass
class EndpointSettings:
    """An OpenAI-compatible chat endpoint. base_url: null is OpenAI's; model: its name there; api_key_env: of
    the environment variable that holds the key; timeout_s, retries: of requests.
    """

    base_url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = at_least(0.01, 60.0)
    retries: int = at_least(0, 2)


@dataclass
class MonitorSettings:
    """Run monitor: off | observe (scores each step, changes nothing) | remediate (GRPO goes back to a healthy
    checkpoint and on with other knobs, see `monitor.intervention`). episodes: how many of a GRPO step's
    episodes go to `episodes.jsonl` (see `monitor.episodes`), 0: none, and no such file. The rest is of
    remediate. planner: who chooses the knobs; llm: endpoint of planner=llm; apply: false only says what would
    be done; alpha: largest p-value of an alarm, where the judge gives one; attempts: at one diagnosis, then
    the run pauses; canary: steps an attempt is on trial; cooldown: steps after a decision in which alarms are
    passed over; checkpoint_every: steps at most (null: as grpo.checkpoint_every), ring: how many checkpoints
    are kept to go back to; budget: most steps that are done again (null: grpo.steps). profile: folder that
    `robustops monitor fit=` made of healthy runs and GRPO is judged by; auto: one of the package, where it is
    of runs like this one; null: rules alone.
    """

    name: str = one_of("off", "observe", "remediate")
    episodes: int = at_least(0, 0)
    profile: str | None = "auto"
    planner: str = one_of("rules", "llm", "noop", "random", "oracle", "rollback")
    llm: EndpointSettings = field(default_factory=EndpointSettings)
    apply: bool = True
    alpha: float = at_least(0, 0.05)
    attempts: int = at_least(1, 3)
    canary: int = at_least(1, 6)
    cooldown: int = at_least(0, 6)
    checkpoint_every: int | None = at_least(1, None)
    ring: int = at_least(2, 6)
    budget: int | None = at_least(0, None)


@dataclass
class RunFaultSettings:
    """A failure injected into training (RFT-FaultBench), see `bench.run_faults`. name: one of its 16 types;
    mechanism: how it comes about (null: the first of the type); strength: 0 to 1, of the mechanism's
    largest effect; unit: what is struck or spared as a whole (null: the mechanism's own), with this
    probability; onset: first step that may be struck, from 1; ramp: steps over which strength grows from 0;
    end: first step that is spared again (null: none); seed: of the injector's own random numbers.
    """

    name: str = one_of("none", *RUN_FAULTS)
    mechanism: str | None = None
    strength: float = at_least(0, 1.0)
    probability: float = at_least(0, 1.0)
    unit: str | None = None
    onset: int = at_least(1, 5)
    ramp: int = at_least(0, 0)
    end: int | None = at_least(1, None)
    seed: int = 0


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
    """`robustops train`. stages: of sft, grpo, in this order; resume: a run folder to go on with; branch: a
    run folder from whose GRPO checkpoint of branch_step (null: the newest) this run goes on in a folder of
    its own, with other knobs (`learning.branching`); dry_run: report what the run would take (memory,
    tokens, steps, disk) and train nothing; second_run_fault: another failure beside that of run_fault.
    """

    stages: list[str] = some_of(STAGES, STAGES)
    resume: str | None = None
    branch: str | None = None
    branch_step: int | None = at_least(1, None)
    dry_run: bool = False
    reward_norm: RewardNormSettings = field(default_factory=RewardNormSettings)
    sft: SFTSettings = field(default_factory=SFTSettings)
    grpo: GRPOSettings = field(default_factory=GRPOSettings)
    run_fault: RunFaultSettings = field(default_factory=RunFaultSettings)
    second_run_fault: RunFaultSettings = field(default_factory=RunFaultSettings)
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
class TransferSettings:
    """Stage transfer of `robustops bench`. sources: sets of runs, see `bench.transfer.plan`; policy: folder
    of the weights that itsm runs begin with, or of a run of experiment=quickstart (null: one is trained);
    healthy, repeats: runs of a set without a fault, and faulty ones a type; steps: of each run; strength: of
    the faults, as easy ones of the campaign, or full.
    """

    sources: list[str] = some_of(("itsm", "trl"), ("itsm", "trl"))
    policy: str | None = None
    healthy: int = at_least(8, 20)
    repeats: int = at_least(1, 1)
    steps: int = at_least(1, 20)
    strength: str = one_of("easy", "full")


@dataclass
class BenchSettings(CommandSettings):
    """`robustops bench`. stage: what to do, see `commands.bench`; campaign: folder of the runs; dataset:
    folder of the tables and figures; partial: make the tables though runs are missing; types: of the run
    faults and of healthy | fault | benign | double (null: everything); seeds: only the first so many seed
    groups; shard, shards: this start's share of the runs, 0 <= shard < shards; workers: processes of one
    thread each, 0 = one a core; seed: of the plan, another one is another campaign;
    methods: detectors and diagnosers to evaluate (null: all); partitions: of the data set, how many; final:
    evaluate, and remedy, on the held-out seed groups, once; profile: folder that stage=fit writes what the
    data set teaches to (null: `profile` in the campaign's folder); cases: faulty runs that are remedied,
    arms: by whom, see `bench.remediation.case`; llm: endpoint of arm llm; transfer: of stage transfer.
    """

    stage: str = one_of(
        *("campaign", "pilot", "dataset", "compare", "table", "figures", "evaluate", "fit", "remediate"),
        "transfer",
    )
    campaign: str = "outputs/faultbench"
    dataset: str = "data/rft_faultbench"
    partial: bool = False
    types: list[str] | None = None
    seeds: int | None = at_least(1, None)
    shard: int = at_least(0, 0)
    shards: int = at_least(1, 1)
    workers: int = at_least(0, 0)
    methods: list[str] | None = None
    partitions: int = at_least(1, 5)
    final: bool = False
    profile: str | None = None
    cases: int = at_least(1, 80)
    arms: list[str] = some_of(("rules", "oracle", "random", "rollback", "noop", "rerun"), ARMS)
    llm: EndpointSettings = field(default_factory=EndpointSettings)
    transfer: TransferSettings = field(default_factory=TransferSettings)


@dataclass
class MonitorCommandSettings(CommandSettings):
    """`robustops monitor`. source: log file or run folder; source_format: who wrote it, auto: by content;
    kl_estimator: unknown | k1 | k3, of a source that logs a KL to the reference and not by which estimator;
    follow: read a growing log until Ctrl-C, every interval_s seconds; horizon: judge only the first so many
    steps; profile: log, or folder of logs, of runs known to be healthy, or a folder that fit made; plot: PNG
    or SVG to draw; fit: folder of logs of healthy runs to learn from, instead of judging, into profile.
    """

    source: str | None = None
    fit: str | None = None
    source_format: str = one_of(
        *("auto", "ours", "wandb", "tensorboard", "verl", "openrlhf", "trl", "jsonl", "csv")
    )
    kl_estimator: str = one_of("unknown", "k1", "k3")
    follow: bool = False
    interval_s: float = at_least(0.1, 5.0)
    horizon: int | None = at_least(1, None)
    profile: str | None = None
    plot: str | None = None


@dataclass
class DoctorSettings(CommandSettings):
    """`robustops doctor`."""
