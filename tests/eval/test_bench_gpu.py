"""`eval/bench/gpu.py` with the CPU on both sides: every step runs and agrees with itself, or the script says no."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [colbert]")
pytest.importorskip("colbert", reason="needs the extra [colbert]")
pytest.importorskip("faiss", reason="needs the extra [dense]")

ROOT = Path(__file__).parents[2]
SMALL = ("--passages", "200", "--queries", "10", "--checkpoint", "tiny")


def run(*arguments: str) -> int:
    """The script in this process; its exit status."""
    before, path = sys.argv, list(sys.path)
    sys.argv = ["gpu.py", *arguments]
    try:
        runpy.run_path(str(ROOT / "eval" / "bench" / "gpu.py"), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv, sys.path[:] = before, path
    return 0


@pytest.mark.slow
def test_every_step_runs_and_agrees_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--device", "cpu", *SMALL) == 0
    out = capsys.readouterr().out
    assert f"torch {torch.__version__}" in out
    for step in ("build, late interaction", "search it, 10 queries", "encode 200", "score 10 texts", "train a step"):
        (line,) = [line for line in out.splitlines() if line.startswith(step)]
        assert line.split()[-2] == "1.0000", line


@pytest.mark.slow
def test_too_little_agreement_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """More than all of the top 10 is asked for, which no search gives."""
    assert run("--device", "cpu", "--least", "1.01", *SMALL) == 1
    assert capsys.readouterr().err.startswith("gpu: cpu and cpu agree too little: search it")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_cuda_it_is_one_line_that_names_torchs_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"no CUDA: torch {torch.__version__} " in err
    assert "make gpu" in err


def test_make_gpu_installs_nothing_without_a_driver(tmp_path: Path) -> None:
    for name in ("make", "sh", "bash", "echo"):
        found = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
        (tmp_path / name).symlink_to(found)
    done = subprocess.run(
        ["make", "gpu"], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no NVIDIA driver on this machine" in done.stderr
    assert "pip" not in done.stdout
