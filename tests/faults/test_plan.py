from __future__ import annotations

import json

import pytest

from robustops.errors import ConfigError
from robustops.faults.plan import FAMILIES, HELD_OUT, SUBTYPES, TRAINED, FaultPlan, family_of, fault_choices


def test_five_families_hold_seven_mechanisms_once_each():
    assert len(FAMILIES) == 5 and len(SUBTYPES) == len(set(SUBTYPES)) == 7
    assert {family_of(subtype) for subtype in SUBTYPES} == set(FAMILIES)


def test_the_held_out_family_is_in_no_training_choice():
    assert set(TRAINED) | set(HELD_OUT) == set(FAMILIES) and not set(TRAINED) & set(HELD_OUT)
    assert "filter_dropped" not in fault_choices("trained")
    assert set(fault_choices("trained")) == set(SUBTYPES) - {"filter_dropped"}


def test_choices_are_none_the_families_trained_and_all():
    assert fault_choices("none") == ()
    assert fault_choices("all") == SUBTYPES
    assert fault_choices("reply_mixup") == ("other_request", "other_object")
    with pytest.raises(ConfigError, match="choose one of: all, ignored_filter, incomplete_read"):
        fault_choices("bogus")


def test_plan_round_trip():
    plan = FaultPlan("missing_rows", 3, 2)
    assert FaultPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.family == "incomplete_read" and plan.repetitions == 2
    assert FaultPlan("lost_receipt", 0, 3).repetitions == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "unknown fault subtype 'nope'"),
        (("missing_rows", -1), "negative"),
        (("missing_rows", 0, 0), "cap 0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        FaultPlan(*arguments)
