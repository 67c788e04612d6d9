"""The list of methods: each can be made, and a name that is not there is told."""

from __future__ import annotations

import dataclasses

import pytest

from robustops.bench.evaluation.registry import DETECT, METHODS, Method, chosen, reference_detector, swept
from robustops.errors import ConfigError


def test_names_are_unique_and_fit_file_names():
    names = [method.name for method in METHODS]
    assert len(set(names)) == len(names) and all(name.replace("_", "").isalnum() for name in names)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_each_is_made_under_its_name_without_its_package(method):
    assert method.make(seed=3).name == method.name


def test_a_seed_is_given_to_those_that_take_one():
    made = {method.name: method.make(seed=3) for method in METHODS}
    assert made["random"].seed == 3 and not hasattr(made["always_fault"], "seed")


def test_the_digest_is_of_sources_and_arguments():
    method = chosen(["lof"])[0]
    assert method.digest() == chosen(["lof"])[0].digest()
    assert method.digest() != dataclasses.replace(method, arguments={"seed": 1}).digest()


def test_a_method_is_there_if_its_package_is():
    here = Method("a", DETECT, "x:Y", package="json")
    assert here.available and not dataclasses.replace(here, package="no_such_package").available


def test_an_unknown_method_is_refused_and_order_is_the_tables():
    assert [m.name for m in chosen(["knn", "lof"])] == ["lof", "knn"]
    with pytest.raises(ConfigError, match="unknown method 'lofi'"):
        chosen(["lofi"])


def test_the_reference_is_the_first_that_was_evaluated():
    assert reference_detector(["lof", "isolation_forest", "chance"]) == "isolation_forest"
    assert reference_detector(["chance", "lof"]) == "lof" and reference_detector(["chance"]) is None
    assert [m.name for m in swept(chosen(["isolation_forest", "svm_classifier", "lof"]))] == [
        "isolation_forest",
        "svm_classifier",
    ]
