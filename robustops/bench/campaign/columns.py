"""Columns of the data set's tables: name, type, unit, meaning. The datasheet is written from here.

Types are names: str, list (of str), bool, int, float32, float64. A telemetry column is float32 unless one of
its finite values does not fit, see `arrow.telemetry_type`.
"""

from __future__ import annotations

from dataclasses import dataclass

from robustops.monitor import schema

#: Of the layout of the tables; a reader refuses any other.
DATASET_VERSION = 1
#: Facts of a telemetry line that are columns of table steps.
STEP_FACTS = ("policy_version", "obs_sha")


@dataclass(frozen=True)
class Column:
    """One column; null: when it has no value ("": always has one)."""

    name: str
    kind: str
    unit: str
    meaning: str
    null: str = ""


def _plan(name: str, kind: str, meaning: str) -> Column:
    return Column(name, kind, "", meaning)


#: Fields of a planned run, which `planned.json` holds.
PLANNED = (
    _plan("run_id", "str", "opaque name of the run; tells nothing of its label"),
    _plan("seed_group", "int", "control, faults and shifts of one seed and variant share it; never split it"),
    _plan("kind", "str", "healthy, fault, benign (a legitimate change in mid-run) or double (two faults)"),
    _plan("fault", "str", "injected type, none if there is none: the label"),
    _plan("mechanism", "str", "how the fault came about, none if there is none"),
    _plan("second_fault", "str", "second type of a double run, else none"),
    _plan("second_mechanism", "str", "its mechanism, else none"),
    _plan("difficulty", "str", "easy or hard, empty without a fault"),
    _plan("mode", "str", "easy, weak, intermittent, ramp or delayed, empty without a fault"),
    _plan("shift", "str", "lr_decay, curriculum, prompt_mix or resume of a benign run, else empty"),
    _plan("variant", "str", "config variety of the seed group"),
    _plan("overrides", "list", "settings of the run over experiment=faultbench"),
    Column("onset", "int", "step", "first step that may differ from the control, from 1; 0: none does"),
    _plan("seed", "int", "seed of the training run"),
    _plan("injector_seed", "int", "seed of the injector's own random numbers"),
)

_NO_FAULT, _NO_SECOND = "no fault", "no second fault"


def _injection(prefix: str, null: str) -> tuple[Column, ...]:
    return (
        Column(f"{prefix}end", "int", "step", "first step that is spared again", f"{null}, or it never ends"),
        Column(f"{prefix}strength", "float64", "1", "of the mechanism's largest effect, 0 to 1", null),
        Column(f"{prefix}probability", "float64", "1", "that a unit is struck", null),
        Column(f"{prefix}ramp", "int", "steps", "over which the strength grows from 0", null),
        Column(f"{prefix}unit", "str", "", "struck or spared as a whole", null),
    )


DERIVED = (
    Column("family", "str", "", "family of the fault, none if there is none"),
    *_injection("", _NO_FAULT),
    Column("second_onset", "int", "step", "first step that the second fault may strike", _NO_SECOND),
    *_injection("second_", _NO_SECOND),
    Column("steps", "int", "steps", "lines of telemetry"),
    Column("episodes", "int", "episodes", "sampled over all steps"),
    Column("value_source", "str", "", schema.FACTS["value_source"]),
    Column("lacks", "list", "", schema.FACTS["lacks"]),
    Column("verified", "bool", "", "exposure and mechanical effect as planned", "not verified yet"),
    Column("reason", "str", "", "why the verification failed, empty if it did not", "not verified yet"),
    Column("checks", "str", "", "numbers of the verification, a JSON object", "not verified yet"),
    Column("logged_episodes", "int", "episodes", "rows of the episode log, which stays with the campaign"),
    Column("ended_by_policy", "float32", "frac", "of these: ended by the policy's own doing", "no log"),
    Column("ended_by_environment", "float32", "frac", "ended by the environment", "no log"),
    Column("ended_by_infrastructure", "float32", "frac", "ended by a failure of engine or world", "no log"),
    Column("seconds", "float64", "s", "wall time of the run", "not measured"),
    Column("cpu_seconds", "float64", "s", "CPU time of the run", "not measured"),
    Column("commit", "str", "", "commit of the program that made the run", "unknown"),
    Column("versions", "str", "", "of program, Python, torch and platform, a JSON object", "unknown"),
)

RUNS = (*PLANNED, *DERIVED)

STEPS = (
    Column("run_id", "str", "", "the run"),
    Column("step", "int", "step", "optimiser step, from 1"),
    Column("policy_version", "int", "updates", schema.FACTS["policy_version"], "not observed"),
    Column("obs_sha", "str", "", schema.FACTS["obs_sha"], "not observed"),
    *(
        Column(q.name, "float32", q.unit, q.formula, "the source has no such column")
        for q in schema.QUANTITIES
    ),
)

EXPOSURE = (
    Column("run_id", "str", "", "the run"),
    Column("injection", "int", "", "1, or 2 for the second fault of a double run"),
    Column("step", "int", "step", "optimiser step, from 1"),
    Column("level", "float64", "1", "strength at this step, 0 outside the window"),
    Column("eligible", "int", "units", "units inside the window"),
    Column("touched", "int", "units", "units that were struck"),
    Column("before", "str", "", "digest of the touched values before"),
    Column("after", "str", "", "digest of the touched values after"),
)

SPLITS = (
    Column("partition", "int", "", "number of the partition, each with random numbers of its own"),
    Column("run_id", "str", "", "the run"),
    Column("seed_group", "int", "", "as in runs"),
    Column("final", "bool", "", "held out for the last test; the same in every partition"),
    Column(
        *("fold", "int", ""),
        "fold of cross-validation, 0 to 4, of the seed groups with injected or shifted runs",
        "final, or a seed group of healthy runs only",
    ),
    Column(
        *("healthy_set", "str", ""),
        "profile, calibration or test: what a healthy run is used for",
        "the run is not healthy",
    ),
)

#: File name without its ending -> columns.
TABLES: dict[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "steps": STEPS,
    "exposure": EXPOSURE,
    "splits": SPLITS,
}
