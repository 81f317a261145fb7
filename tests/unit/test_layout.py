"""Text for terminals: figures with the digits that count, names that fit, lines that do too."""

from __future__ import annotations

import pytest

from emo.layout import bullets, duration, paragraph, percent, plural, sections, short_name, table


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.6, "1.000 us"),
        (12_340, "12.34 us"),
        (999_949, "999.9 us"),
        (999_951, "1.000 ms"),
        (348_033_000, "348.0 ms"),
        (1_738_039_000, "1.738 s"),
        (123_456_000_000_000, "123456.0 s"),
        (-12_340, "-12.34 us"),
    ],
)
def test_durations_have_four_digits(ns: float, text: str) -> None:
    assert duration(ns) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 7, "0 %"), (1, 1, "100 %"), (1, 3, "33 %"), (1, 20, "5.0 %"), (1, 10_000, "< 0.1 %"), (3, 0, "0 %")],
)
def test_shares_keep_a_digit_where_they_are_small(part: float, whole: float, text: str) -> None:
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gemm", "gemm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
         "at::native::vectorized_elementwise_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
         "softmax_warp_forward"),
        ("void " + "very_long_namespace::" * 3 + "kernel<float>(float const*)", "kernel"),
        ("k" * 60, "k" * 45 + "..."),
        ("<" + "x" * 60, "<" + "x" * 44 + "..."),
    ],
)  # fmt: skip
def test_long_kernel_names_lose_what_matters_least(name: str, short: str) -> None:
    assert short_name(name) == short
    assert 0 < len(short_name(name)) <= 48


def test_lines_wrap_under_their_own_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = paragraph("word " * 30, "lead  ").splitlines()
    assert lines[0].startswith("lead  word")
    assert all(line.startswith("      word") for line in lines[1:])
    assert max(map(len, lines)) <= 50
    monkeypatch.setenv("COLUMNS", "1000")
    assert max(map(len, paragraph("word " * 100).splitlines())) <= 100


def test_control_characters_never_get_through() -> None:
    text = paragraph("a\x1b[31mb\rc\x07d\u202ee")
    assert all(char.isprintable() for char in text)


def test_columns_align_and_leave_no_trailing_space() -> None:
    text = table(("name", "ns", "why"), [("a", "1", "x"), ("bcdef", "234", "")], left=frozenset({0, 2}))
    assert text.splitlines() == ["name    ns  why", "a        1  x", "bcdef  234"]


def test_empty_parts_leave_no_gap() -> None:
    assert sections("a", bullets("nothing", []), "b") == "a\n\nb"
    assert bullets("title", ["x"]).splitlines() == ["title", "  - x"]


def test_plural() -> None:
    assert [plural(n, "GPU") for n in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
