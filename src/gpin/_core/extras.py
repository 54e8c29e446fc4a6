"""Optional packages: they are imported where they are used, inside `with extra(…)`."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

from gpin._core.errors import MissingPackageError

__all__ = ["extra", "installed_version"]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """A context in which to import the packages of an optional extra; the error for a missing one names the extra.

    Example:
        >>> with extra("plots"):
        ...     import surely_not_installed
        Traceback (most recent call last):
            ...
        gpin._core.errors.MissingPackageError: the package surely_not_installed is missing: pip install 'gpin[plots]'

    Arguments:
        name: The extra, one of `project.optional-dependencies` in pyproject.toml.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise MissingPackageError(f"the package {package} is missing: pip install 'gpin[{name}]'") from None


def installed_version(package: str) -> str | None:
    """The version of an installed package, given its name on the package index; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
