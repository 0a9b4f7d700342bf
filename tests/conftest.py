"""What every test shares: a seed, quiet threads, and a fresh interpreter to run code in."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

pytest_plugins = ["tests.every_export", "tests.accept", "tests.versions"]

SOURCE = Path(__file__).resolve().parents[1] / "src"

# No deadline: the first example of a property pays for torch's lazy imports. Derandomised, so that
# the same commit gives the same result on every machine.
hypothesis.settings.register_profile("graphport", deadline=None, derandomize=True)
hypothesis.settings.load_profile("graphport")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers that each start a thread per core slow one another down.
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run tests in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files in a random order, and the tests in each: what a file sets up is set up once still."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    draw = random.Random(seed)
    files = {item.path: draw.random() for item in items}
    places = {item: draw.random() for item in items}
    items.sort(key=lambda item: (files[item.path], places[item]))


@pytest.fixture(autouse=True)
def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny models spend more time on handing work to threads than on the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def fresh_python() -> Callable[[str], str]:
    """Run code in a new interpreter and return what it prints."""

    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def run(code: str) -> str:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
