"""A build, phase by phase: its plan, its codec, its files; over several processes; killed; on a full disk."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, MissingFile, WorkFailed
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT, building
from blendfilter.retrieval.colbert import index as index_module
from blendfilter.retrieval.colbert.building import (
    ENCODING,
    PER_CENTROID,
    BuildSettings,
    WorkerJob,
    check_settings,
    chunks_of,
    compress,
    compress_beside,
    kmeans,
    nearest,
    planned,
    train,
    trained,
)
from blendfilter.retrieval.colbert.compat import parts, patch_colbert
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort, effort_for
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.stored import StoredPassages

QUERIES = ["Which river is of 17?", "the king of the island", "castle 88", "hill 5 5 5"]


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def small_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int = 40, block: int = 16) -> None:
    monkeypatch.setattr(building, "CHUNK", chunk)
    monkeypatch.setattr(building, "BLOCK", block)


def hits(index: ColBERT, queries: Sequence[str] = QUERIES, k: int = 10) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score or 0.0) for hit in found] for found in index.search(queries, k)]


def test_colbert_ais_own_searcher_finds_the_same(index: ColBERT, towns: list[Passage], checkpoint: Path) -> None:
    patch_colbert()
    from colbert import Searcher
    from colbert.infra import ColBERTConfig

    assert index.path is not None
    effort = SearchEffort(ncells=1, threshold=0.5, ndocs=256)
    theirs = Searcher(
        index=index.path.name, index_root=str(index.path.parent), checkpoint=str(checkpoint),
        collection=[passage.line for passage in towns], verbose=0,
        config=ColBERTConfig(ncells=1, centroid_score_threshold=0.5, ndocs=256),
    )  # fmt: skip
    for query, ours in zip(QUERIES, hits(ColBERT.open(index.path, effort=effort)), strict=True):
        numbers, _, scores = theirs.search(query, k=10)
        assert [towns[number].id for number in numbers] == [name for name, _ in ours]
        assert scores == pytest.approx([score for _, score in ours], abs=1e-4)


def test_lists_are_colbert_ais(index: ColBERT, tmp_path: Path) -> None:
    from colbert.indexing.utils import optimize_ivf

    assert index.path is not None
    copy = Path(shutil.copytree(index.path, tmp_path / "index"))
    codes = torch.load(copy / "0.codes.pt")
    ordered = codes.sort(stable=True)
    counts = torch.bincount(ordered.values, minlength=index.manifest.settings["partitions"])
    lists, lengths = optimize_ivf(ordered.indices, counts, str(copy), verbose=0)
    ours, our_lengths = torch.load(index.path / "ivf.pid.pt")
    kept = int(lengths.sum())
    assert torch.equal(our_lengths, lengths)
    assert torch.equal(ours[:kept], lists[:kept])
    assert ours.dtype == lists.dtype
    assert len(ours) >= kept + int(lengths.max()), "room behind the last list, at the width of the longest"


def test_metadata_knows_no_path_of_its_own(index: ColBERT, checkpoint: Path) -> None:
    assert index.path is not None
    for name in ("metadata.json", "plan.json", "manifest.json"):
        text = (index.path / name).read_text()
        assert str(index.path.parent) not in text
        assert "building" not in text
    result = json.loads((index.path / "metadata.json").read_text())
    assert result["num_chunks"] == 1
    assert result["num_embeddings"] == index.manifest.settings["vectors"]
    assert result["config"] == {
        "dim": 32, "nbits": 4, "doc_maxlen": 220, "query_maxlen": 32, "checkpoint": str(checkpoint.resolve()),
    }  # fmt: skip


def test_two_builds_are_one_index(index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path) -> None:
    again = ColBERT.build(towns, tmp_path / "again", checkpoint=checkpoint)
    assert again.fingerprint == index.fingerprint
    assert index.path is not None
    assert tree(tmp_path / "again") == tree(index.path)


@pytest.mark.parametrize("change", [{"nbits": 2}, {"doc_maxlen": 12}, {"partitions": 16}])
def test_settings_make_another_index(
    change: dict[str, int], index: ColBERT, towns: list[Passage], checkpoint: Path
) -> None:
    other = ColBERT.build(towns, checkpoint=checkpoint, **change)  # type: ignore[arg-type]
    assert other.fingerprint != index.fingerprint
    assert other.manifest.settings[next(iter(change))] == next(iter(change.values()))


def test_many_chunks_are_one(
    index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    other = ColBERT.build(towns, tmp_path / "other", checkpoint=checkpoint)
    folder = tmp_path / "other"
    assert len(list(folder.glob("*.codes.pt"))) == 4
    assert index.path is not None
    whole, parts = tree(index.path), tree(folder)
    for name in ("ivf.pid.pt", "centroids.pt", "buckets.pt"):
        assert parts[name] == whole[name]
    for kind in ("codes", "residuals"):
        joined = torch.cat([torch.load(folder / f"{chunk}.{kind}.pt") for chunk in range(4)])
        assert torch.equal(joined, torch.load(index.path / f"0.{kind}.pt"))
    lengths = [length for chunk in range(4) for length in json.loads(parts[f"doclens.{chunk}.json"])]
    assert lengths == json.loads(whole["doclens.0.json"])
    about = [json.loads(parts[f"{chunk}.metadata.json"]) for chunk in range(4)]
    assert [each["passage_offset"] for each in about] == [0, 40, 80, 120]
    assert about[3]["embedding_offset"] + about[3]["num_embeddings"] == other.manifest.settings["vectors"]
    assert hits(other) == hits(index)


def test_the_sample_is_what_encoding_anew_gives(towns: list[Passage], encoder: TokenEncoder, tmp_path: Path) -> None:
    for name in ("kept", "anew"):
        (tmp_path / name).mkdir()
    settings = BuildSettings(4, partitions=8)  # few centroids want few passages: most are encoded later
    _, sample = train(tmp_path / "kept", towns, encoder, settings)
    train(tmp_path / "anew", towns, encoder, settings)
    assert sum(compress(tmp_path / "kept", towns, encoder, 64, [0], sample)) == len(towns)
    list(compress(tmp_path / "anew", towns, encoder, 64, [0]))
    one, other = (torch.load(tmp_path / name / "0.codes.pt") for name in ("kept", "anew"))
    assert (one == other).float().mean() > 0.999  # other batches, other rounding
    assert (tmp_path / "kept" / "doclens.0.json").read_text() == (tmp_path / "anew" / "doclens.0.json").read_text()


def test_a_larger_corpus_is_sampled(encoder: TokenEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "LOOK", 8)
    monkeypatch.setattr(building, "BLOCK", 5)
    many = [Passage(str(n), "", f"river {n} of the sea") for n in range(120)]
    result: list[Any] = []
    made, sample = train(tmp_path, many, encoder, BuildSettings(4, partitions=4), lambda *row: result.append(row))
    expected = building.planned(120, sum(map(len, sample.values())) / made.sample, "cpu", 4)
    assert 8 < made.sample < 120
    assert abs(made.sample - expected.sample) <= 3  # the length was estimated from the first eight
    assert len(sample) == made.sample
    assert max(sample) > 100, "from all over the corpus"
    assert [row for row in result if row[0] == building.SAMPLING][-1][1:] == (made.sample, made.sample)


def test_half_a_character_is_indexed(checkpoint: Path) -> None:
    index = ColBERT.build([Passage("a", "", "river \ud800"), Passage("b", "", "sea")], checkpoint=checkpoint)
    assert len(index("the \udfff river", k=2)) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nbits": 0}, "nbits must be 1, 2, 4 or 8"),
        ({"nbits": 3}, "nbits must be 1, 2, 4 or 8"),
        ({"nbits": 8}, "nbits=8 wants vectors of a multiple of 64, not 32"),
        ({"doc_maxlen": 3}, "doc_maxlen must lie between 4 and the 512 tokens"),
        ({"doc_maxlen": 513}, "doc_maxlen must lie between 4 and the 512 tokens"),
        ({"partitions": 0}, "partitions must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"gpus": -1}, "gpus must lie between 0 and"),
        ({"gpus": 99}, "gpus must lie between 0 and"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], said: str, checkpoint: Path, tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("the corpus was read")
        yield

    with pytest.raises(BadArgument, match=said):
        ColBERT.build(never(), tmp_path / "index", checkpoint=checkpoint, **settings)
    assert not list(tmp_path.iterdir())


def test_the_smallest_settings_build(checkpoint: Path) -> None:
    one = [Passage("a", "", "river of the sea")]
    index = ColBERT.build(one, checkpoint=checkpoint, doc_maxlen=4, partitions=1, nbits=1)
    assert index.manifest.settings["vectors"] == 4
    check_settings(BuildSettings(1, 4, 1, 1), ColBERTCheckpoint(checkpoint))


def test_phases_are_told_in_order(towns: list[Passage], checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    result: list[tuple[str, int, int | None]] = []
    ColBERT.build(towns, checkpoint=checkpoint, progress=lambda *row: result.append(row))  # type: ignore[arg-type]
    assert list(dict.fromkeys(phase for phase, _, _ in result)) == [
        "reading passages", "encoding a sample", "training centroids", "encoding passages",
        "listing passages by centroid",
    ]  # fmt: skip
    for phase in dict.fromkeys(phase for phase, _, _ in result):
        rows = [(done, total) for name, done, total in result if name == phase]
        assert rows == sorted(rows)
        assert rows[-1][0] == rows[-1][1]
    assert [done for phase, done, _ in result if phase == "encoding passages"] == [
        16, 32, 40, 56, 72, 80, 96, 112, 120, 136, 150,
    ]  # fmt: skip


@given(st.integers(1, 10**8), st.floats(3, 220), st.sampled_from(["cpu", "cuda"]))
def test_a_plan_holds_together(passages: int, length: float, device: str) -> None:
    plan = planned(passages, length, device)
    assert plan.partitions == 2 ** round(math.log2(plan.partitions))
    assert 1 <= plan.sample <= passages
    rule = {"cpu": 4, "cuda": 16}[device] * math.sqrt(passages * length)
    assert rule / 2 < plan.partitions <= max(rule, 1)
    assert plan.sample == passages or plan.sample * length >= plan.partitions * PER_CENTROID


@given(st.integers(1, 5_000), st.integers(1, 10**7))
def test_k_passages_can_be_scored_in_full(k: int, passages: int) -> None:
    assert effort_for(k, passages).ndocs // 4 >= k


CPU = torch.device("cpu")


def unit(rows: int, dim: int = 32, seed: int = 0) -> torch.Tensor:
    """Unit vectors in eight loose clusters."""
    chance = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, dim, generator=chance)
    noise = torch.randn(rows, dim, generator=chance)
    return torch.nn.functional.normalize(centres[torch.arange(rows) % 8] + 0.4 * noise, dim=1)


def test_a_worked_example() -> None:
    """Two bundles, symmetric about (1, 0) and (0, 1): (0.96, 0.28) + (0.96, -0.28) = (1.92, 0), so their centroids are
    the axes. Where both start in the first bundle, the second one draws (0.96, 0.28) along at first:
    (0.96, 0.28) + (0.28, 0.96) + (-0.28, 0.96) = (0.96, 2.2), of length one (0.40, 0.92); at the next round it is
    nearer to (0.96, -0.28), by 0.84 to 0.64, and goes back."""
    vectors = torch.tensor([[0.96, 0.28], [0.96, -0.28], [0.28, 0.96], [-0.28, 0.96]])
    centroids = kmeans(vectors, 2, 4, CPU)
    ordered = centroids[centroids[:, 0].argsort(descending=True)]
    assert torch.allclose(ordered, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), atol=1e-6)


def test_the_same_every_time_and_each_of_length_one() -> None:
    vectors = unit(500).half()
    one, other = kmeans(vectors, 32, 4, CPU), kmeans(vectors, 32, 4, CPU)
    assert torch.equal(one, other)
    assert one.dtype == torch.float32
    assert torch.allclose(one.norm(dim=1), torch.ones(32), atol=1e-5)


def test_a_centroid_that_lost_its_vectors_gets_one() -> None:
    vectors = torch.cat([torch.tensor([[1.0, 0.0]]).repeat(50, 1), torch.tensor([[0.0, 1.0]])])
    centroids = kmeans(vectors, 5, 3, CPU)  # of equal centroids, one takes all
    assert torch.isfinite(centroids).all()
    assert torch.allclose(centroids.norm(dim=1), torch.ones(5))


def test_nearest_in_blocks_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centroids = unit(333), unit(40, seed=1)
    whole = (vectors @ centroids.T).argmax(1)
    monkeypatch.setattr(building, "SCORES", 7 * 40)
    assert torch.equal(nearest(vectors, centroids), whole)
    monkeypatch.setattr(building, "SCORES", 1)
    assert torch.equal(nearest(vectors.half(), centroids), (vectors.half().float() @ centroids.T).argmax(1))


def test_more_bits_lose_less() -> None:
    vectors = unit(2_000)
    losses = []
    for nbits in (1, 2, 4):
        made = trained(vectors, count=16, rounds=4, config=parts().config(dim=32, nbits=nbits), device=CPU)
        small = made.compress(vectors)
        assert small.residuals.shape == (2_000, 32 * nbits // 8)
        losses.append(1 - (made.decompress(small) * vectors).sum(1).mean().item())
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 0.1
    assert losses[1] < 0.03
    assert losses[2] < 0.003


def test_more_centroids_than_vectors_and_one_vector() -> None:
    config = parts().config(dim=32, nbits=4)
    assert len(trained(unit(10), count=64, rounds=2, config=config, device=CPU).centroids) == 10
    one = trained(unit(1), count=1, rounds=2, config=config, device=CPU)
    assert torch.allclose(one.decompress(one.compress(unit(1))), unit(1), atol=1e-3)


def test_wide_vectors_do_not_overflow_torchs_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_QUANTILE", 64)
    wanted: list[int] = []
    plain = torch.Tensor.quantile

    def quantile(self: torch.Tensor, *arguments: object) -> torch.Tensor:
        wanted.append(self.numel())
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "quantile", quantile)
    trained(unit(1_000), count=8, rounds=1, config=parts().config(dim=32, nbits=2), device=CPU)
    assert wanted == [64, 64]


CHUNK = 40
IN_EVERY_PROCESS = f"""
import sys
if any("run_worker" in word for word in sys.orig_argv):
    sys.stderr.write("a library has much to say\\n" * 10_000)  # more than a pipe holds
    from blendfilter.retrieval.colbert import building
    building.CHUNK = {CHUNK}
"""
SLOWLY = """
import time
if any("run_worker" in word for word in sys.orig_argv):
    from blendfilter.retrieval.colbert.encoder import TokenEncoder
    building.BLOCK = 1
    plain = TokenEncoder.passages
    def slowly(*arguments):
        time.sleep(0.3)
        return plain(*arguments)
    TokenEncoder.passages = slowly
"""
PARENT = """
import json, os, sys
from blendfilter.retrieval.colbert.building import WorkerJob, compress_beside
compress_beside([WorkerJob(*json.loads(sys.argv[1]), os.getpid())], 150)
"""


@pytest.fixture
def unfinished(index: ColBERT, tmp_path: Path) -> Path:
    """The folder of a build whose centroids are trained, and whose passages are not encoded yet."""
    assert index.path is not None
    folder = Path(shutil.copytree(index.path, tmp_path / "unfinished"))
    for path in [*folder.glob("0.*"), *folder.glob("doclens.*"), folder / "metadata.json", folder / "ivf.pid.pt"]:
        path.unlink()
    return folder


@pytest.fixture
def chunks_of_forty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Chunks of 40 passages, here and in the workers; returns the file that every new process runs first."""
    monkeypatch.setattr(building, "CHUNK", CHUNK)
    (tmp_path / "path").mkdir()
    start = tmp_path / "path" / "sitecustomize.py"
    start.write_text(IN_EVERY_PROCESS)
    monkeypatch.setenv("PYTHONPATH", str(start.parent), prepend=os.pathsep)
    return start


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    processes: list[subprocess.Popen[bytes]] = []
    plain = subprocess.Popen

    def start(*arguments: Any, **settings: Any) -> Any:
        processes.append(plain(*arguments, **settings))
        return processes[-1]

    monkeypatch.setattr(building.subprocess, "Popen", start)
    return processes


def chunk_files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for pattern in ("[0-9]*.codes.pt", "[0-9]*.residuals.pt", "[0-9]*.metadata.json", "doclens.*")
        for path in folder.glob(pattern)
    }


@pytest.mark.slow
@pytest.mark.usefixtures("chunks_of_forty")
def test_two_workers_write_what_one_process_writes(
    unfinished: Path, checkpoint: Path, encoder: TokenEncoder, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    alone = Path(shutil.copytree(unfinished, tmp_path / "alone"))
    list(compress(alone, StoredPassages(alone), encoder, 64, range(chunks_of(150))))
    result: list[Any] = []
    jobs = [WorkerJob(str(unfinished), str(checkpoint), "cpu", 220, 64, rank, 2, os.getpid()) for rank in range(2)]
    compress_beside(jobs, 150, lambda *row: result.append(row))
    assert len(chunk_files(alone)) == 4 * 4
    assert chunk_files(unfinished) == chunk_files(alone)
    assert result[-1] == (ENCODING, 150, 150)
    assert result == sorted(result)
    assert [process.poll() for process in started] == [0, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("chunks_of_forty")
def test_a_build_on_two_devices(
    index: ColBERT, towns: list[Passage], checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[bytes]],
) -> None:  # fmt: skip
    monkeypatch.setattr(index_module, "devices_for", lambda gpus: ["cpu", "cpu"])
    other = ColBERT.build(towns, checkpoint=checkpoint)
    assert len(started) == 2
    for query in ("Which river is of 17?", "the king of the island"):
        assert [hit.id for hit in other(query, k=5)] == [hit.id for hit in index(query, k=5)]


def test_a_worker_that_fails_is_told_and_the_others_end(
    unfinished: Path, checkpoint: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    result = (checkpoint, tmp_path / "gone")
    jobs = [WorkerJob(str(unfinished), str(result[rank]), "cpu", 220, 64, rank, 2, os.getpid()) for rank in range(2)]
    text = r"^encoding on cpu \(1\) failed: .*MissingFile: no checkpoint at .*gone"
    with pytest.raises(WorkFailed, match=text) as error:
        compress_beside(jobs, 150)
    assert "\n" not in str(error.value)
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)


def test_a_worker_that_was_killed_says_how_it_ended(
    unfinished: Path, checkpoint: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    def kill(*_: Any) -> None:
        started[0].send_signal(signal.SIGKILL)
        started[0].wait()

    job = WorkerJob(str(unfinished), str(checkpoint), "cpu", 220, 64, 0, 1, os.getpid())
    with pytest.raises(WorkFailed, match=r"encoding on cpu \(0\) failed: exit status -9"):
        compress_beside([job], 150, kill)


def test_workers_end_with_a_build_that_is_stopped(
    unfinished: Path, checkpoint: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    job = WorkerJob(str(unfinished), str(checkpoint), "cpu", 220, 64, 0, 1, os.getpid())
    with pytest.raises(KeyboardInterrupt):
        compress_beside([job], 150, stop)
    assert started[0].poll() == -signal.SIGKILL


def running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def works(process: str) -> bool:
    """Whether it is a worker: what the parent imports may start short-lived processes of its own."""
    with suppress(OSError):
        return b"run_worker" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the worker in /proc")
def test_a_worker_whose_parent_was_killed_ends(unfinished: Path, checkpoint: Path, chunks_of_forty: Path) -> None:
    """Killed as soon as the worker is there, long before it looks for its parent for the first time."""
    chunks_of_forty.write_text(IN_EVERY_PROCESS + SLOWLY)
    job = [str(unfinished), str(checkpoint), "cpu", 220, 64, 0, 1]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, json.dumps(job)], stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + 60
    while not (found := [*filter(works, children.read_text().split())]) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    (child,) = map(int, found)
    assert running(child)
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        assert not running(child)
        assert not list(unfinished.glob("0.codes.pt")), "it did not go on to the end of a chunk (12 s)"
    finally:
        if running(child):
            os.kill(child, signal.SIGKILL)


FORKED = """
import os, resource, signal, sys
from pathlib import Path
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT, index as module
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint
from blendfilter.retrieval.colbert.encoder import TokenEncoder
import torch

torch.set_num_threads(1)
TokenEncoder(ColBERTCheckpoint(sys.argv[2]), "cpu")  # imports what a build imports, once for all of them

def build(out, checkpoint, **settings):
    return ColBERT.build([Passage(str(n), "", f"the river {n} of the sea") for n in range(90)], out,
                         checkpoint=checkpoint, **settings)

def forked(work):  # from a process whose torch has no threads, so that it may
    child = os.fork()
    if child == 0:
        try:
            work()
        except OSError as error:
            print(f"OSError {error.errno} {error.strerror}", file=sys.stderr, flush=True)
            os._exit(3)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(4)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED = """
out, checkpoint, overwrite = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "overwrite"
for moment in (1, 2, 4, 7, 8, "manifest"):
    def work():
        calls = []
        if moment == "manifest":
            module.write_manifest = die
        def progress(*row):
            calls.append(row)
            if len(calls) == moment:
                die()
        build(out, checkpoint, overwrite=overwrite, progress=progress)
    state = forked(work)
    assert os.WIFSIGNALED(state) and os.WTERMSIG(state) == signal.SIGKILL, (moment, state)
    assert out.exists() == overwrite
    assert len(list(out.parent.glob(".*building*"))) == 1, "what earlier ones left behind was swept"
"""
FULL = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out, checkpoint, overwrite = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "overwrite"
for limit in (1_000, 5_000, 5_600, 15_000):
    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        build(out, checkpoint, overwrite=overwrite)
    state = forked(work)
    assert os.WIFEXITED(state) and os.WEXITSTATUS(state) == 3, (limit, state)
    assert out.exists() == overwrite
    assert not list(out.parent.glob(".*building*"))
"""


def script(code: str, *words: Any) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED + code, *map(str, words)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.fixture
def old(tmp_path: Path, towns: list[Passage], checkpoint: Path) -> ColBERT:
    return ColBERT.build(towns[:30], tmp_path / "place" / "index", checkpoint=checkpoint)


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_opens(tmp_path: Path, towns: list[Passage], checkpoint: Path) -> None:
    place = tmp_path / "place"
    script(KILLED, place / "index", checkpoint, "new")
    with pytest.raises(MissingFile):
        open_index(place / "index")
    assert len(list(place.iterdir())) == 1
    index = ColBERT.build(towns, place / "index", checkpoint=checkpoint)
    assert len(index("river", k=5)) == 5
    assert [path.name for path in place.iterdir()] == ["index"]


@pytest.mark.slow
def test_a_killed_replacement_leaves_the_old_index(old: ColBERT, checkpoint: Path) -> None:
    assert old.path is not None
    script(KILLED, old.path, checkpoint, "overwrite")
    again = open_index(old.path)
    assert again.fingerprint == old.fingerprint
    assert again.search(["river"], 5) == old.search(["river"], 5)


@pytest.mark.slow
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, checkpoint: Path) -> None:
    ended = script(FULL, tmp_path / "place" / "index", checkpoint, "new")
    assert not list((tmp_path / "place").iterdir())
    result = ended.stderr.splitlines()
    assert len(result) == 4
    assert all(line.startswith("OSError ") for line in result)
    assert any("torch could not write the index here: is the disk full?" in line for line in result)


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_index(old: ColBERT, checkpoint: Path) -> None:
    assert old.path is not None
    script(FULL, old.path, checkpoint, "overwrite")
    assert json.loads((old.path / "manifest.json").read_text())["fingerprint"] == old.fingerprint
    assert open_index(old.path).search(["river"], 5) == old.search(["river"], 5)
