import numpy as np
import pytest

from robustops.monitor.detect.residuals import Relations, ledoit_wolf, own_start
from robustops.seeding import array_generator


def healthy(rows: int = 2000) -> np.ndarray:
    """Four signals, the first two nearly equal, the last alone; blocks 0 0 1 1."""
    rng = array_generator(0, "levels", rows)
    common = rng.standard_normal((rows, 1))
    own = rng.standard_normal((rows, 4))
    return np.concatenate(
        [common + 0.1 * own[:, :1], common + 0.1 * own[:, 1:2], 0.8 * common + 0.6 * own[:, 2:3], own[:, 3:]],
        axis=1,
    )


@pytest.fixture(scope="module")
def relations() -> Relations:
    return Relations.fit(healthy(), [0, 0, 1, 1])


def test_shrinkage_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.covariance")
    rows = healthy(60)
    expected = sklearn.LedoitWolf(assume_centered=True).fit(rows)
    covariance, weight = ledoit_wolf(rows)
    assert np.allclose(covariance, expected.covariance_)
    assert weight == pytest.approx(expected.shrinkage_)
    assert np.linalg.eigvalsh(ledoit_wolf(rows[:2])[0]).min() > 0


def slow_partial(covariance: np.ndarray, row: np.ndarray, place: int, others: list[int]) -> float:
    """Regression of one signal on others, in deviations of what is left."""
    slopes = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, place])
    left = covariance[place, place] - slopes @ covariance[others, place]
    return float((row[place] - slopes @ row[others]) / np.sqrt(left))


def test_partial_and_across_are_regressions(relations: Relations) -> None:
    rows = healthy(50)[:5]
    partial, across = relations.partial(rows), relations.across(rows)
    for step, row in enumerate(rows):
        for place in range(4):
            everything = [other for other in range(4) if other != place]
            other_stage = [other for other in range(4) if (other < 2) != (place < 2)]
            assert partial[step, place] == pytest.approx(
                slow_partial(relations.covariance, row, place, everything)
            )
            assert across[step, place] == pytest.approx(
                slow_partial(relations.covariance, row, place, other_stage)
            )


def test_who_breaks_a_relation_stands_out_and_healthy_rows_have_variance_one(relations: Relations) -> None:
    found = relations.partial(healthy(500))
    assert np.allclose(found.std(axis=0)[2:], 1, atol=0.2)
    assert (found.std(axis=0) > 0.5).all() and (found.std(axis=0) < 1.2).all()  # less: noise is allowed for
    broken = np.array([[0.5, -0.5, 0.0, 0.0]])
    assert abs(relations.partial(broken)[0, :2]).min() > 4
    assert abs(broken).max() < 1


def test_a_whole_stage_that_moves_stays_visible_across(relations: Relations) -> None:
    moved = np.array([[3.0, 3.0, 0.0, 0.0]])
    assert abs(relations.partial(moved)[0, 0]) < 3
    assert relations.across(moved)[0, 0] > 3


def test_distances_are_about_normal_for_healthy_rows(relations: Relations) -> None:
    wide = Relations.fit(array_generator(1, "wide").standard_normal((4000, 30)), [0] * 30)
    common, rest = wide.distances(array_generator(2, "wide").standard_normal((4000, 30))).T
    assert abs(common.mean()) < 0.2 and 0.8 < common.std() < 1.2
    assert abs(rest.mean()) < 0.5
    outlier = relations.distances(np.array([[0.0, 0.0, 0.0, 0.0], [5.0, -5.0, 5.0, 5.0]]))
    assert outlier[1].sum() > outlier[0].sum() + 3


def test_what_is_not_observed_is_left_out(relations: Relations) -> None:
    rows = healthy(20)
    rows[:10, 1] = np.nan
    found = relations.partial(rows)
    assert np.isnan(found[:10, 1]).all()
    assert np.array_equal(found[10:], relations.partial(rows[10:]))
    assert np.array_equal(relations.across(rows)[10:], relations.across(rows[10:]))
    covariance = relations.covariance
    assert found[3, 0] == pytest.approx(slow_partial(covariance, rows[3], 0, [2, 3]))
    nothing = np.full((3, 4), np.nan)
    assert np.isnan(relations.partial(nothing)).all()
    assert np.isnan(relations.across(nothing)).all()
    assert np.isnan(relations.distances(nothing)).all()


def test_relations_survive_json(relations: Relations) -> None:
    again = Relations.from_dict(relations.to_dict())
    rows = healthy(5)
    assert np.array_equal(again.across(rows), relations.across(rows))
    assert again.factors == relations.factors


def test_own_start_by_hand() -> None:
    levels = np.array([[1.0, np.nan], [3.0, np.nan], [5.0, 1.0], [np.nan, 1.0]])
    found = own_start(levels, first=2)
    assert np.isnan(found[:2]).all()
    assert found[2, 0] == pytest.approx((5 - 2) / np.sqrt(1.5))
    assert np.isnan(found[3, 0])
    assert np.isnan(found[:, 1]).all()
