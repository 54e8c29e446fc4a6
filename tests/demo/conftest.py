"""One small run of the demo, for all its tests."""

import pytest

from gpin import demo


@pytest.fixture(scope="session")
def small():
    return demo.Settings(epochs=2, samples=30, validation=40, test=60)


@pytest.fixture(scope="session")
def result(small, tmp_path_factory):
    return demo.run(tmp_path_factory.mktemp("demo") / "out", small)
