"""What every test stands on: fresh DSPy settings, no cache of the user's, no network but loopback."""

from __future__ import annotations

import gc
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import hypothesis
import pytest

from blendfilter import resources

# What a property test says is whether something holds; how long an example takes depends on the machine's load.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

os.environ.setdefault("DSPY_CACHEDIR", str(Path(__file__).parent / ".dspy_cache"))
if os.environ.get("BLENDFILTER_DSPY") == "3.5":  # before anything looks at DSPy
    import dspy35

    dspy35.install()
_CACHES = tempfile.TemporaryDirectory(prefix="blendfilter-tests-")
_numbers = count()
_kernels = resources.cache("kernels")
_kernels.mkdir(parents=True, exist_ok=True)


def _cache(name: str) -> str:
    """A cache folder, empty but for ColBERT's kernels: these are compiled once, not for each test."""
    folder = Path(_CACHES.name) / name
    folder.mkdir()
    (folder / "kernels").symlink_to(_kernels)
    return str(folder)


os.environ["BLENDFILTER_CACHE"] = _cache("shared")  # of fixtures wider than a test
for name in [key for key in os.environ if key.endswith("_API_KEY")]:
    del os.environ[name]

pytest_plugins = ["small_world"]
"""Its fixtures `here` and `blendfilter` are everybody's; a module may have its own."""

SHARED = Path(os.environ.get("BLENDFILTER_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""Real questions and corpora for development; tests that read them skip, saying so, where they are absent."""

_connect = socket.socket.connect


def _loopback_only(self: socket.socket, address: object) -> None:
    host = address[0] if isinstance(address, tuple) else address
    if self.family != socket.AF_UNIX and host not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"tests may not reach the network (asked for {host!r})")
    _connect(self, address)  # type: ignore[arg-type]


def pytest_configure() -> None:
    """Ctrl-C is heard by the tests that press it, though a shell starts what goes to the background deaf to it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What the imports made stays, so no later collection looks through it: that is a third of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _loopback_only)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds a reply that another one was given, and none writes into the user's own cache."""
    monkeypatch.setenv("BLENDFILTER_CACHE", _cache(str(next(_numbers))))


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data, or a skip that says what is missing."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the development data in {SHARED} (set BLENDFILTER_SHARED_DATA)")
    return SHARED


@pytest.fixture
def fresh_dspy() -> Iterator[None]:
    """DSPy settings as on import, for the length of one test."""
    import dspy

    with dspy.context(lm=None, adapter=None, rm=None, trace=[], callbacks=[]):
        yield
