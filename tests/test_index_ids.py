"""Ids to delete: as many on the command line as fit there, and only strings."""

import pytest

import blendfilter as bf
from blendfilter.cli.indexes import _ids
from blendfilter.errors import BadArgument


def test_a_list_of_ids_may_be_longer_than_a_file_name() -> None:
    wanted = [f"id{number}" for number in range(3000)]
    assert _ids(",".join(wanted)) == wanted


def test_a_number_is_no_id(tmp_path) -> None:
    index = bf.BM25.build(["a river", "a hill"], out=tmp_path / "index")
    with pytest.raises(BadArgument, match="no passage 1 in the index"):
        index.update(delete=[1])


def test_control_characters_of_an_id_reach_no_terminal(tmp_path) -> None:
    index = bf.BM25.build(["a river", "a hill"], out=tmp_path / "index")
    with pytest.raises(BadArgument) as error:
        index.update(delete=["x\x1b[31m"])
    assert "\x1b" not in str(error.value)
