"""Who may ask."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.server.connections import is_local, knows

TOKEN = "2f6c91d0a4"


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"bearer  {TOKEN} "},
        basic(f"any:{TOKEN}"),
        basic(f":{TOKEN}"),
    ],
)
def test_the_token_is_known_in_each_of_its_forms(headers: dict[str, str]) -> None:
    assert knows(headers, TOKEN)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": TOKEN},
        {"authorization": f"Token {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}0"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": "Bearer ￿é"},
        {"authorization": "Basic %%%"},
        basic(f"{TOKEN}:"),
        basic(TOKEN),
        basic(f"any:{TOKEN}:more"),
    ],
)
def test_nothing_else_is(headers: dict[str, str]) -> None:
    assert not knows(headers, TOKEN)


@given(st.text())
def test_no_header_breaks_the_check(value: str) -> None:
    assert not knows({"authorization": value}, TOKEN)
    assert not knows({"authorization": f"Basic {value}"}, TOKEN)
    assert is_local(value) in (True, False)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8893", "127.8.8.8", "[::1]", "[::1]:8893"])
def test_names_of_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[::2]", "0.0.0.0"]
)
def test_names_of_others(host: str) -> None:
    assert not is_local(host)
