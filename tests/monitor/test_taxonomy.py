import pytest

from robustops.bench.run_faults.catalog import CATALOG
from robustops.errors import ConfigError
from robustops.monitor.taxonomy import CODES, FAMILIES, TYPES, family_of


def test_names_families_and_codes_are_those_of_the_catalogue():
    assert {name: (fault.family, fault.code) for name, fault in CATALOG.items()} == {
        name: (family_of(name), CODES[name]) for name in TYPES
    }
    assert tuple(CATALOG) == TYPES
    assert list(FAMILIES) == list(dict.fromkeys(fault.family for fault in CATALOG.values()))


def test_an_unknown_type_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"unknown run fault 'nix'; choose one of: advantage_instability"):
        family_of("nix")
