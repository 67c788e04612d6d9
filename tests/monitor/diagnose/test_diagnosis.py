"""The diagnoser on made-up runs: types, unknown, evidence, files, refusals."""

import subprocess
import sys

import numpy as np
import pytest

from robustops.errors import ConfigError
from robustops.monitor import schema
from robustops.monitor.diagnose import learned as files
from robustops.monitor.diagnose.diagnosis import OwnDiagnosis
from robustops.monitor.diagnoser import likeliest, novelty
from robustops.monitor.panel import Panel
from robustops.monitor.verdict import UNKNOWN
from tests.monitor.detect.runs import run, runs
from tests.monitor.diagnose.faulty import KINDS, diagnoser, faulty, training, unseen

NEW = range(700, 708)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start, steps", [(5, 40), (12, 20), (20, 40)])
def test_types_are_told_at_any_onset_and_horizon(kind: str, start: int, steps: int) -> None:
    said = [likeliest(diagnoser().probabilities(faulty(kind, n, start, steps=steps))) for n in NEW]
    assert said.count(kind) >= 7


def test_weaker_faults_than_any_that_was_learned_are_told() -> None:
    panels = [(kind, faulty(kind, n, 5, 0.4)) for kind in KINDS for n in NEW]
    right = [likeliest(diagnoser().probabilities(panel)) == kind for kind, panel in panels]
    assert np.mean(right) > 0.85


def test_probabilities_sum_to_one_and_name_what_was_learned() -> None:
    found = diagnoser().probabilities(faulty("kl_explosion", 700))
    assert set(found) == {*KINDS, UNKNOWN} and sum(found.values()) == pytest.approx(1.0)
    assert min(found.values()) >= 0


def test_label_sets_hold_the_type_and_are_small() -> None:
    sets = [(kind, diagnoser().labels(faulty(kind, n, 6))) for kind in KINDS for n in NEW]
    assert np.mean([kind in found for kind, found in sets]) >= 0.8
    assert np.mean([len(found) for _, found in sets]) < 2


def test_a_kind_that_was_never_seen_is_unknown() -> None:
    strange = [diagnoser().diagnose(unseen(n)) for n in NEW]
    assert (
        np.mean([one.type == UNKNOWN and one.family == UNKNOWN and not one.labels for one in strange]) > 0.7
    )
    known = [novelty(diagnoser().probabilities(faulty(kind, n))) for kind in KINDS for n in NEW]
    assert np.median([novelty(one.probabilities) for one in strange]) > np.quantile(known, 0.9)


def test_two_faults_at_once_are_both_in_the_set_or_unknown() -> None:
    """Never a single type, as if it were all."""
    for n in NEW:
        one, other = faulty("reward_spike", n), faulty("length_long", n)
        both = Panel(one.steps, {**one.columns, "len_mean": other["len_mean"], "entropy": other["entropy"]})
        found = diagnoser().labels(both)
        assert not found or {"reward_spike", "length_long"} & set(found)


def test_evidence_names_the_first_mover_first() -> None:
    found = diagnoser().diagnose(faulty("entropy_collapse", 700, 10))
    assert found.evidence[0].column == "entropy" and abs(found.onset - 11) <= 1
    assert [one.step for one in found.evidence] == sorted(one.step for one in found.evidence)
    assert diagnoser().evidence(faulty("entropy_collapse", 700, 10)) == found.evidence


def test_evidence_of_a_broken_invariant() -> None:
    found = diagnoser().diagnose(faulty("value_mismatch", 701, 10))
    broken = [one for one in found.evidence if one.score == float("inf")]
    assert [one.column for one in broken] == ["adv_group_mean_absmax"] and broken[0].step == 11
    assert found.onset <= 11 and found.type == "value_mismatch" and found.family == "credit"


def test_absent_columns_speak_for_no_type() -> None:
    """A source that logs tier P alone is diagnosed by what it has."""
    portable = schema.names("P")
    for kind in ("reward_spike", "kl_explosion", "length_long", "entropy_collapse"):
        said = [likeliest(diagnoser().probabilities(faulty(kind, n).only(portable))) for n in NEW]
        assert said.count(kind) >= 6


def test_nothing_but_numbers_of_steps_counts() -> None:
    """Not the name of the source, nor the order of columns, nor further columns that healthy runs lack."""
    panel = faulty("length_long", 702)
    other = Panel(
        panel.steps, {**dict(reversed(panel.columns.items())), "rewards.x.mean": panel.steps * 1.0}, "z"
    )
    assert diagnoser().probabilities(panel) == diagnoser().probabilities(other)


def test_a_saved_diagnoser_says_the_same_to_the_bit(tmp_path) -> None:
    path = tmp_path / "own.npz"
    diagnoser().save(path)
    again = OwnDiagnosis.load(path)
    for panel in [*(faulty(kind, 703, 7) for kind in KINDS), unseen(703)]:
        assert again.diagnose(panel) == diagnoser().diagnose(panel)
    twice = tmp_path / "twice.npz"
    again.save(twice)
    assert OwnDiagnosis.load(twice).labels(panel) == again.labels(panel)
    assert (again.alpha, again.prefixes, again.seed) == (0.1, (), 0)


def test_a_saved_diagnoser_takes_no_scikit_learn(tmp_path) -> None:
    path = tmp_path / "own.npz"
    diagnoser().save(path)
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import numpy as np\n"
        "from robustops.monitor.diagnose.diagnosis import OwnDiagnosis\n"
        "from robustops.monitor.panel import Panel\n"
        f"own = OwnDiagnosis.load({str(path)!r})\n"
        "panel = Panel(np.arange(1, 31), {'entropy': np.linspace(0.1, 0.0, 30)})\n"
        "print(own.diagnose(panel).type)\n"
        "assert not {'torch', 'scipy', 'lightning'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_copies_are_learned_from_without_crossing_folds() -> None:
    panels, labels = training()
    chosen = [at for at in range(len(panels)) if labels[at] in KINDS[:2]]
    made = OwnDiagnosis(prefixes=(10, 20), portable=True)
    assert [len(own) for own in made._copies(panels[0])] == [40, 40, 10, 10, 20, 20]
    made.fit([panels[at] for at in chosen], [labels[at] for at in chosen], runs(12))
    found = made.learned.confidence.oddities.scores
    assert len(found) == 6 * len(chosen)
    early = faulty("reward_spike", 704, 3).until(10).only(schema.names("P"))
    assert likeliest(made.probabilities(early)) == "reward_spike"


def test_what_cannot_be_learned_is_refused() -> None:
    panels, labels = training()
    with pytest.raises(ConfigError, match="has learned nothing yet"):
        OwnDiagnosis().probabilities(run(1))
    with pytest.raises(ConfigError, match="80 faulty runs have 79 labels"):
        OwnDiagnosis().fit(panels, labels[1:], runs(30))
    with pytest.raises(ConfigError, match="5 healthy runs are too few"):
        OwnDiagnosis().fit(panels, labels, runs(5))
    with pytest.raises(ConfigError, match="of 1 type"):
        OwnDiagnosis().fit(panels[:16], labels[:16], runs(6))
    with pytest.raises(ConfigError, match="nonsense"):
        OwnDiagnosis().fit(panels, ["nonsense", *labels[1:]], runs(6))
    with pytest.raises(ConfigError, match="several seeds"):
        OwnDiagnosis().fit([panels[0], panels[16]], [labels[0], labels[16]], runs(6))
    with pytest.raises(ConfigError, match="has no step"):
        OwnDiagnosis().fit([panels[0].until(0), *panels[1:]], labels, runs(6))
    with pytest.raises(ConfigError, match="no step to diagnose"):
        diagnoser().labels(run(1).until(0))
    with pytest.raises(ConfigError, match=r"alpha is 1\.5"):
        OwnDiagnosis(alpha=1.5)
    with pytest.raises(ConfigError, match="prefixes"):
        OwnDiagnosis(prefixes=[0])


def test_files_that_are_none_are_refused(tmp_path, monkeypatch) -> None:
    with pytest.raises(ConfigError, match="there is no fitted diagnoser"):
        OwnDiagnosis.load(tmp_path / "absent.npz")
    torn = tmp_path / "torn.npz"
    diagnoser().save(torn)
    torn.write_bytes(torn.read_bytes()[:2000])
    with pytest.raises(ConfigError, match="is no fitted diagnoser"):
        OwnDiagnosis.load(torn)
    other = tmp_path / "other.npz"
    np.savez(other, head=np.array('{"kind": "something else"}'))
    with pytest.raises(ConfigError, match="is no fitted diagnoser"):
        OwnDiagnosis.load(other)
    old = tmp_path / "old.npz"
    monkeypatch.setattr(files, "VERSION", 0)
    diagnoser().save(old)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="of version 0"):
        OwnDiagnosis.load(old)


def test_another_profile_in_the_file_is_noticed(tmp_path) -> None:
    path = tmp_path / "own.npz"
    diagnoser().save(path)
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["detector"] = np.array(str(arrays["detector"]).replace("entropy", "entropi"))
    np.savez(path, **arrays)
    with pytest.raises(ConfigError, match="another profile"):
        OwnDiagnosis.load(path)
