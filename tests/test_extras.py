import pytest

from robustops.errors import ConfigError
from robustops.extras import require


def test_a_module_is_imported_and_an_absent_one_named_with_its_extra():
    assert require("json", "x").dumps([1]) == "[1]"
    with pytest.raises(
        ConfigError, match=r"nosuchpackage is not installed .*pip install 'robustops\[wandb\]'"
    ):
        require("nosuchpackage.part", "wandb")
