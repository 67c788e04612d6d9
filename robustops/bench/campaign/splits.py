"""Which runs are learned from and which are tested on; a seed group is never split.

    final         a quarter of the seed groups, the same in every partition: looked at once, in the end
    fold          cross-validation in five folds over the other groups that hold injected or shifted runs,
                  stratified by what is injected and how (StratifiedGroupKFold)
    healthy_set   of the groups that hold healthy runs only: half profile, three tenths calibration, a fifth
                  test; all test where the group is final. A control goes with its group and is test

Each partition deals folds and healthy sets anew. Seed groups of the pilot are not part of a campaign: a plan
has seeds of its own (`plan.planned`), and `exclude` leaves out groups by number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from robustops.bench.campaign.extras import require
from robustops.seeding import child_seed, generator

PARTITIONS, FOLDS = 5, 5
FINAL_SHARE = 0.25
HEALTHY_SETS = {"profile": 0.5, "calibration": 0.3, "test": 0.2}
Row = dict[str, Any]


def split(
    runs: Sequence[Mapping[str, Any]],
    *,
    partitions: int = PARTITIONS,
    seed: int = 0,
    exclude: Collection[int] = (),
) -> list[Row]:
    """Rows of table splits. runs: rows of table runs, in any order; exclude: seed groups to leave out."""
    chosen = sorted((r for r in runs if r["seed_group"] not in exclude), key=lambda run: run["run_id"])
    groups: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for run in chosen:
        groups[run["seed_group"]].append(run)
    final = final_groups(groups, seed)
    rows = []
    for partition in range(partitions):
        folds = _folds(groups, final, child_seed(seed, "partition", partition))
        sets = _healthy_sets(groups, final, child_seed(seed, "partition", partition))
        rows += [
            {
                "partition": partition,
                "run_id": run["run_id"],
                "seed_group": run["seed_group"],
                "final": run["seed_group"] in final,
                "fold": folds.get(run["seed_group"]),
                "healthy_set": sets.get(run["seed_group"], "test") if run["kind"] == "healthy" else None,
            }
            for run in chosen
        ]
    return rows


def final_groups(groups: Mapping[int, Sequence[Mapping[str, Any]]], seed: int) -> set[int]:
    """A quarter of the groups of each sort, evenly over the varieties of the configuration."""
    held: set[int] = set()
    for plain in (True, False):
        own = {g: runs for g, runs in groups.items() if only_healthy(runs) == plain}
        shares = {"final": FINAL_SHARE, "": 1 - FINAL_SHARE}
        dealt = _deal(own, shares, child_seed(seed, "final", int(plain)))
        held |= {group for group, name in dealt.items() if name == "final"}
    return held


def only_healthy(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nothing is injected or shifted in any of a group's runs."""
    return all(run["kind"] == "healthy" for run in runs)


def _healthy_sets(
    groups: Mapping[int, Sequence[Mapping[str, Any]]], final: set[int], seed: int
) -> dict[int, str]:
    own = {g: runs for g, runs in groups.items() if only_healthy(runs) and g not in final}
    return _deal(own, HEALTHY_SETS, seed)


def _folds(groups: Mapping[int, Sequence[Mapping[str, Any]]], final: set[int], seed: int) -> dict[int, int]:
    """Fold of each group that is cross-validated; a campaign of fewer groups than folds has fewer folds."""
    mixed = [g for g, runs in groups.items() if not only_healthy(runs) and g not in final]
    own = [(group, run) for group in mixed for run in groups[group]]
    count = min(FOLDS, len({group for group, _ in own}))
    if count < 2:
        return {group: 0 for group, _ in own}
    labels = _strata([run for _, run in own], count)
    splitter = require("sklearn.model_selection").StratifiedGroupKFold(
        count, shuffle=True, random_state=seed % 2**32
    )
    folds: dict[int, int] = {}
    places = splitter.split(own, labels, [group for group, _ in own])
    for fold, (_, held) in enumerate(places):
        folds |= {own[place][0]: fold for place in held}
    return folds


def _strata(runs: Sequence[Mapping[str, Any]], least: int) -> list[int]:
    """Number of each run's sort: kind, fault and mode, or less where no sort has `least` runs then."""
    for names in (("kind", "fault", "mode"), ("kind", "fault"), ("kind",), ()):
        labels = ["/".join(run[name] for name in names) for run in runs]
        if max(Counter(labels).values()) >= least:
            break
    numbers = {label: number for number, label in enumerate(sorted(set(labels)))}
    return [numbers[label] for label in labels]


def _deal(
    groups: Mapping[int, Sequence[Mapping[str, Any]]], shares: Mapping[str, float], seed: int
) -> dict[int, str]:
    """Deal shuffled groups, variety by variety, always to the set that is furthest behind its share."""
    order = sorted(groups)
    generator(seed, "order").shuffle(order)
    order.sort(key=lambda group: str(groups[group][0]["variant"]))  # stable: shuffled within a variety
    counts = dict.fromkeys(shares, 0)
    dealt: dict[int, str] = {}
    for number, group in enumerate(order, start=1):
        name = max(shares, key=lambda name: shares[name] * number - counts[name])
        counts[name] += 1
        dealt[group] = name
    return dealt
