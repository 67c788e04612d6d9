from __future__ import annotations

import dataclasses

import pytest

from robustops.records import Group, RewardParts
from robustops.rewards.guards import RewardGuards, guarded
from tests.learning.support import group_of, made_episode


def group(*parts, success=True) -> Group:
    episodes = []
    for number, part in enumerate(parts):
        made = made_episode([(4, 8)], 10, seed=number, parts=(1.0 if success else 0.0, 0, 0), index=number)
        episodes.append(dataclasses.replace(made, reward_parts=None if part is None else RewardParts(*part)))
    return group_of(*episodes)


def parts_of(given: Group):
    return [e.reward_parts for e in given.episodes]


def test_bounds_by_hand():
    wild = group((3.0, 7.0, 2.0), (-1.0, -4.0, -0.5), (1.0, -1.0, 0.25))
    held = parts_of(guarded(wild, RewardGuards(bounded=True)))
    assert held == [RewardParts(1.0, 1.0, 1.0), RewardParts(0.0, -1.0, 0.0), RewardParts(1.0, -1.0, 0.25)]


def test_success_is_read_off_the_checks_again():
    lost = parts_of(guarded(group((0.0, 0.5, 0.25)), RewardGuards(recheck=True)))
    granted = parts_of(guarded(group((1.0, 0.5, 0.25), success=False), RewardGuards(recheck=True)))
    assert lost == [RewardParts(1.0, 0.5, 0.25)] and granted == [RewardParts(0.0, 0.5, 0.25)]


def test_all_parts_are_computed_again_where_they_can_be():
    true = RewardParts(1.0, 0.75, 0.5)
    found = parts_of(guarded(group((0.0, 9.0, 0.0), None), RewardGuards(recheck=True), lambda episode: true))
    assert found == [true, None]
    untouched = guarded(group((0.0, 9.0, 0.0)), RewardGuards(bounded=True), lambda episode: true)
    assert parts_of(untouched) == [RewardParts(0.0, 1.0, 0.0)]


@pytest.mark.parametrize("guards", [RewardGuards(), RewardGuards(True), RewardGuards(False, True)])
def test_sound_rewards_and_episodes_without_one_stay_as_they_are(guards):
    sound = group((1.0, 1.0, 0.5), (1.0, -1.0, 0.0), None)
    assert guarded(sound, guards) == sound
    assert (guarded(sound, guards) is sound) == (guards == RewardGuards())
