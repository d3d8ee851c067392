"""What a report of a run costs: its size, the seconds it takes to make and to open, the memory a call.

    python eval/bench/report.py RUN [RUN…] [--loads 5] [--shots FOLDER]

The page is made beside the run (the other runs stand beside the first on it). Memory is what Python's allocator holds
at most while it is made (tracemalloc, in a making of its own), divided by the run's calls. Opening is measured in
Chromium (Debian's, headless, an empty profile) from a file: from the start of the load to the mark that the page's
script sets when the list can be used, and from a click to a trace that is shown; the median of several loads.
`--shots` photographs the page and an open trace at two widths, as docs/report.md shows them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from browser_page import Browser, browser, missing

from blendfilter import Run


def made(folders: list[Path]) -> tuple[Path, float, float]:
    """The page, the seconds to make it, and the bytes a call held at most on the way."""
    first, *others = folders
    started = time.perf_counter()
    path = Run(first).html(*others)
    seconds = time.perf_counter() - started
    run = Run(first)
    calls = sum(len(row["calls"]) for row in run.rows)
    del run
    tracemalloc.start()
    Run(first).html(*others)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return path, seconds, held / calls


def opened(window: Browser, page: Path) -> tuple[float, float]:
    """Seconds to a list that can be used, and from a click to a trace."""
    window.open(page)
    ready = window.interactive()
    window.wait("document.querySelector('#list .open')")
    started = time.perf_counter()
    window.ask("document.querySelector('#list .open').click()")
    window.wait("document.querySelector('.trace .inside')")
    return ready, time.perf_counter() - started


def photograph(window: Browser, page: Path, folder: Path, question: str) -> None:
    """The head and the trace of `question`, as a desk and as a telephone shows them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, width, height in (("wide", 1280, 1160), ("narrow", 390, 1160)):
        window.size(width, height)
        window.open(page)
        window.interactive()
        window.driver.save_screenshot(str(folder / f"report-{name}.png"))
        window.open(page, f"#q={question}")
        window.wait("document.querySelector('.trace .inside')")
        window.ask("document.querySelector('.passage.kept').open = true")
        window.ask("scrollBy(0, -60)")
        time.sleep(0.5)  # what is drawn lies a moment behind what is laid out
        window.driver.save_screenshot(str(folder / f"report-trace-{name}.png"))


def main() -> None:
    """Make, open, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="the run to report, and those to stand beside it")
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--shots", type=Path, help="where to put the pictures")
    parser.add_argument("--question", default="", help="the id of the question whose trace is photographed")
    asked = parser.parse_args()

    path, seconds, held = made(asked.runs)
    folder = path.with_suffix("")
    files = sorted(folder.glob("*.html")) if folder.is_dir() else [path]
    largest = max(files, key=lambda each: each.stat().st_size)
    total = sum(each.stat().st_size for each in files)
    print(f"{len(Run(asked.runs[0]).rows):,} answers: {len(files)} page(s), {total / 1e6:.1f} MB, "
          f"the largest {largest.stat().st_size / 1e6:.1f} MB")  # fmt: skip
    print(f"made in {seconds:.1f} s, {held:,.0f} bytes a call held at most")
    if lacking := missing():
        sys.exit(f"not opened: {lacking}")
    with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as window:
        for page in dict.fromkeys([files[0], largest]):
            loads = [opened(window, page) for _ in range(asked.loads)]
            ready, shown = (statistics.median(times) for times in zip(*loads, strict=True))
            print(f"{page.name}: usable after {ready:.2f} s, a trace {shown:.2f} s after the click")
        if asked.shots:
            photograph(window, path, asked.shots, asked.question or Run(asked.runs[0]).rows[0]["id"])
        foreign = [url for url in window.requests() if not url.startswith(("file:", "data:", "about:"))]
        print(f"requests elsewhere: {len(foreign)}; complaints on the console: {len(window.complaints())}")


if __name__ == "__main__":
    main()
