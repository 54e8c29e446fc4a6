"""Optional packages: where one is missing, its extra is named."""

import pytest

from gpin._core.errors import InputError
from gpin._core.extras import extra, installed_version


def test_a_missing_package_is_named_with_its_extra():
    with (
        pytest.raises(
            InputError, match=r"^the package absent_package is missing: pip install 'gpin\[plots\]'$"
        ) as raised,
        extra("plots"),
    ):
        import absent_package.part  # noqa: F401
    assert isinstance(raised.value, ImportError)  # what an import may raise, for those who catch it


def test_a_package_that_is_there_is_imported_and_other_errors_are_left_alone():
    with extra("plots"):
        import json
    assert json.loads("1") == 1
    with pytest.raises(KeyError), extra("plots"):
        raise KeyError("x")


def test_the_version_of_a_package_is_told_where_it_is_installed():
    assert installed_version("pytest") == pytest.__version__
    assert installed_version("absent-package") is None
