"""Fixtures of all unit tests."""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvscope.plan import experiment, registry
from kvscope.plan.composition import Composer


@pytest.fixture(scope="session", autouse=True)
def composed_once() -> Iterator[None]:
    """Hydra composes the same choices of the same files once: that is much of these tests' time."""
    compose, known = Composer._compose, {}

    def composed(self: Composer, choices: Any) -> Any:
        content = sha256()
        for name, path in self.files.items():
            if not name.startswith("study/"):
                content.update(
                    b"%d %s %b" % (path.stat().st_size, name.encode(), path.read_bytes())
                )
        names = tuple(tuple(registry.find_registered(kind)) for kind in registry.KINDS)
        key = (choices, content.digest(), names)
        if key not in known:
            known[key] = compose(self, choices)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "_compose", composed)
        yield


HASHED = re.compile(r"-[0-9a-f]{10}$")


@pytest.fixture(scope="session", autouse=True)
def fakes_have_names() -> Iterator[None]:
    """Fake runs have part of the settings and a name without a hash, which nothing recomputes."""
    require_id = experiment.require_id

    def require(path: Path, settings: dict[str, Any]) -> None:
        if all(HASHED.search(expected) for expected, _ in experiment.ids_beside(path)):
            require_id(path, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "require_id", require)
        yield
