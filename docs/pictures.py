"""The README's pictures, from real runs: `python docs/pictures.py`.

What the terminal shows in colour becomes an SVG without font or script from elsewhere; the grid is the command's.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).with_name("images")
WIDTH = 100
PAPER = TerminalTheme(
    (250, 249, 246), (40, 40, 44),
    [(40, 40, 44), (178, 66, 20), (0, 110, 80), (150, 104, 0), (0, 90, 150), (140, 70, 120), (0, 120, 150), (120,) * 3],
)  # fmt: skip


def picture(command: list[str], name: str, lines: int | None = None) -> None:
    """Run a command of ours in colour and keep what it printed as an SVG."""
    env = {**os.environ, "FORCE_COLOR": "1", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH)}
    shown = subprocess.run(
        [sys.executable, "-m", "manyheads", *command], env=env, capture_output=True, text=True, check=True
    ).stdout
    kept = shown.rstrip().splitlines()[:lines]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ manyheads {' '.join(command)}", style="bold"))
    console.print(Text.from_ansi("\n".join(kept)), soft_wrap=True)
    svg = console.export_svg(title="manyheads", theme=PAPER)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace(
        "Fira Code, monospace", "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    )
    (IMAGES / f"{name}.svg").write_text(re.sub(r"terminal-\d+", "terminal", svg), encoding="utf-8")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-m", "manyheads", "look"], capture_output=True, check=True)  # the page, once
    picture(["look"], "look")
    picture(["head", "L2H9", "The cat sat because the cat was tired, and the dog let the cat sleep."], "head")
    subprocess.run(
        [sys.executable, "-m", "manyheads", "look", "--plot", str(IMAGES / "grid.png")],
        check=True,
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
