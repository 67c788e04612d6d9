"""Work of a few runs with chosen scores, to count by hand."""

from __future__ import annotations

import numpy as np

from robustops.bench.evaluation.protocol import Fold, Partition
from robustops.bench.evaluation.resampling import draw_groups
from robustops.bench.evaluation.runs import Label
from robustops.bench.evaluation.units import Done, Unit
from robustops.bench.run_faults.catalog import CATALOG

CALIBRATION = tuple(f"c{place:02d}" for place in range(19))
STEPS = 10


def label(run_id, group, fault="none", onset=0, difficulty="easy", kind=None):
    faulty = fault != "none"
    found = CATALOG.get(fault)
    family = found.family if found else "none"
    kind = kind or ("fault" if faulty else "healthy")
    level = difficulty if faulty else ""
    return Label(run_id, group, kind, fault, family, level, level, "m", run_id != "f3", True, onset)


LABELS = {
    **{name: label(name, 100 + place) for place, name in enumerate(CALIBRATION)},
    "h1": label("h1", 1),
    "h2": label("h2", 2),
    "f1": label("f1", 1, "reward_spike", onset=4),
    "f2": label("f2", 2, "kl_explosion", onset=4),
    "f3": label("f3", 2, "reward_spike", onset=6),
    "b1": label("b1", 1, kind="benign"),
}
TESTED = ("h1", "h2", "f1", "f2", "f3", "b1")
FOLD = Fold(0, (), ("f1", "f2", "f3"), ("h1", "h2"))
PARTITION = Partition(0, ("p1", "p2"), CALIBRATION, TESTED, (FOLD,))


def draws():
    """The sample and a few draws of the two tested groups."""
    return draw_groups({1: "mixed", 2: "mixed"}, seed=0, draws=20)


def detected(first_above, scores, method="reward_z"):
    """A detector whose step score passes 1 at the given step (0: never); calibration runs stay below."""
    names = (*CALIBRATION, *TESTED)
    steps = np.full((len(names), STEPS), 0.5, dtype=np.float32)
    for name, step in first_above.items():
        if step:
            steps[names.index(name), step - 1 :] = 2.0
    levels = np.linspace(0.0, 1.0, len(CALIBRATION)).tolist()
    arrays = {"run_ids": np.array(names), "steps": steps}
    arrays["scores"] = np.array(levels + [scores[name] for name in TESTED])
    unit = Unit(method, "P", STEPS, PARTITION)
    return Done(unit, {"method": method, "threshold": None}, arrays)


def diagnosed(said, method="chance"):
    """A diagnoser that is sure by 0.6 of what it is told to say."""
    types = [*sorted({"reward_spike", "kl_explosion", "update_freeze"}), "unknown"]
    names = ("f1", "f2", "f3", "h1", "h2")
    shares = np.array([[0.6 if name == said[run] else 0.1 for name in types] for run in names])
    arrays = {"run_ids": np.array(names), "types": np.array(types), "probabilities": shares}
    return Done(Unit(method, "P", STEPS, PARTITION, PARTITION.folds[0]), {"method": method}, arrays)
