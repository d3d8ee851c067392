"""colbert-ai as a guest: it loads under transformers 5, and leaves the process as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blendfilter.errors import MissingExtra
from blendfilter.retrieval.colbert.building import codec_class, trained
from blendfilter.retrieval.colbert.compat import decompress, load_kernels, parts

KERNELS = ("filter_pids_cpp", "decompress_residuals_cpp", "segmented_lookup_cpp", "segmented_maxsim_cpp")
GUEST = """
import multiprocessing, os, sys
from pathlib import Path

class WithoutFaiss:  # it is no part of the extra, and colbert-ai prints that it wants it
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *more):
        return None if name.partition(".")[0] == "faiss" else self.finder.find_spec(name, *more)

sys.meta_path[:] = map(WithoutFaiss, sys.meta_path)
before = multiprocessing.get_start_method(allow_none=True), os.environ.get("TOKENIZERS_PARALLELISM")
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.compat import parts

parts()
assert "colbert.infra.launcher" in sys.modules
assert (multiprocessing.get_start_method(allow_none=True), os.environ.get("TOKENIZERS_PARALLELISM")) == before
index = ColBERT.build([Passage(str(n), "", f"river {n}") for n in range(9)], checkpoint=sys.argv[1])
assert len(index("river 3", k=3)) == 3
print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("reported", [None, "true"])
def test_the_process_is_left_as_it_was(reported: str | None, checkpoint: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    environment |= {"TOKENIZERS_PARALLELISM": reported} if reported else {}
    ended = subprocess.run(
        [sys.executable, "-c", GUEST, str(checkpoint)],
        capture_output=True, text=True, env=environment, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "end\n"


# --- kernels --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of kernels that were compiled earlier; nothing is loaded from it."""
    for name in KERNELS:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.so").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def loading(monkeypatch: pytest.MonkeyPatch, look: Any) -> list[Any]:
    """What `look` saw each time that a part of colbert-ai would have loaded its kernels."""
    seen: list[Any] = []
    for part in (parts().model, parts().scorer, parts().strided):
        monkeypatch.setattr(part, "try_load_torch_extensions", lambda gpu: seen.append(look()))
    return seen


def test_the_lock_of_a_killed_compile_is_removed(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = kernels / KERNELS[0] / "lock"
    lock.touch()  # torch would wait for its end for ever
    (kernels / "somebody_elses_cpp").mkdir()
    others = kernels / "somebody_elses_cpp" / "lock"
    others.touch()  # a compile that may be at work
    seen = loading(monkeypatch, lock.exists)
    load_kernels()
    assert seen == [False] * 3
    assert others.exists()


def test_no_compiler_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    seen = loading(monkeypatch, lambda: None)
    with pytest.raises(MissingExtra, match=r"^searching a ColBERT index on the CPU .* no C\+\+ compiler: install one"):
        load_kernels()
    assert not seen


@pytest.mark.parametrize("nbits", [1, 2, 4, 8])
def test_decompress_is_the_kernels(nbits: int) -> None:
    load_kernels()
    chance = torch.Generator().manual_seed(nbits)
    vectors = torch.nn.functional.normalize(torch.randn(300, 64, generator=chance), dim=1)
    config = parts().config(dim=64, nbits=nbits)
    codec = trained(vectors, 16, config, torch.device("cpu"))
    small = codec.compress(vectors)
    maps = (codec.bucket_weights, codec.reversed_bit_map, codec.decompression_lookup_table)
    ours = decompress(small.residuals, *maps, small.codes, codec.centroids, 64, nbits)
    lengths, starts = torch.tensor([100, 200]), torch.tensor([0, 100, 300])
    kernel = parts().scorer.decompress_residuals(
        torch.tensor([0, 1], dtype=torch.int32), lengths, starts, *maps, small.residuals, small.codes, codec.centroids,
        64, nbits,
    )  # fmt: skip
    assert torch.allclose(ours, kernel, atol=1e-6)
    assert torch.allclose(torch.nn.functional.normalize(ours, dim=1), codec.decompress(small), atol=1e-6)
    assert issubclass(codec_class(), parts().codec)
