"""docs/images/healthy-heads.svg: every head of a small model while it learns Python, from a real training.

    python docs/healthy_heads.py            train (about five minutes), then draw
    python docs/healthy_heads.py FOLDER     draw what a training left in FOLDER

The model is a Llama of transformers, 4 layers of 6 heads of width 16, which reads windows of 256 tokens of the standard
library's own source, in tiny-code's vocabulary.
"""

from __future__ import annotations

import math
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import manyheads as mh
from manyheads.figures.palette import FADED
from manyheads.figures.paper import BODY, SMALL, Sheet
from manyheads.roles.words.role_table import INK
from manyheads.watching import HeadCurves, open_history

PICTURE = Path(__file__).parent / "images" / "healthy-heads.svg"
STEPS, WARM_UP, RATE, WINDOW, TEXTS = 1200, 100, 2e-3, 256, 4
STATISTICS = ("max_logit", "entropy", "first_mass", "heaviest_key", "previous_mass", "q_norm", "k_norm", "output_share")
MARGIN, LEFT, TOP, CELL, GAP, ROW, BLOCK = 36, 92, 126, 112, 14, 84, 54


def train(out: Path) -> None:
    """A training as any other, watched at every 20th step."""
    torch.manual_seed(0)
    tokenizer = mh.load("tiny-code").tokenizer
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    code = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
    ids = torch.tensor(tokenizer(code, add_special_tokens=False, verbose=False)["input_ids"])
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 6}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with mh.watch(model, every=20, statistics=STATISTICS, out=out) as seen:
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_UP)
            starts = torch.randint(len(ids) - WINDOW, (TEXTS,)).tolist()
            batch = torch.stack([ids[start : start + WINDOW] for start in starts])
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.step()
            if seen.fresh:
                print(f"{seen.done:>5}  loss {loss.item():.2f}  {seen.latest(layers=False)}", flush=True)


def draw(curves: HeadCurves, path: Path) -> None:
    """Two blocks of small panels, a row a layer and a column a head: entropy above, max logit below."""
    layers = sorted({head.layer for head in curves.heads})
    columns = 1 + max(head.index for head in curves.heads)
    blocks = (
        ("Entropy of a row's weights, mean, in nats; grey: an even spread over all that a row sees", "entropy"),
        ("Max logit of the step: the largest score that the softmax was given", "max_logit"),
    )
    height = TOP + len(blocks) * (len(layers) * ROW + BLOCK) - BLOCK + 8
    sheet = Sheet(LEFT + columns * (CELL + GAP) - GAP + MARGIN, height)
    title = "Every head of a small model while it learns"
    sheet.heading(MARGIN, title, f"{len(layers)} layers of {columns} heads on Python's own source; "
                                 f"across: {curves.steps[-1]:,} steps")  # fmt: skip
    # A row that sees n keys evenly has ln n nats: the mean over the rows of a text.
    even = sum(math.log(keys) for keys in range(1, WINDOW + 1)) / WINDOW
    for block, (words, name) in enumerate(blocks):
        begin = TOP + block * (len(layers) * ROW + BLOCK)
        sheet.text(LEFT, begin - 20, words, BODY, weight="bold")
        values = curves.values[:, :, curves.statistics.index(name)]
        top = 5.0 if name == "entropy" else 10.0 * math.ceil(values.max() / 10)
        for place, head in enumerate(curves.heads):
            x, y = LEFT + head.index * (CELL + GAP), begin + layers.index(head.layer) * ROW
            rules = {tick: f"{tick:g}" if head.index == 0 else "" for tick in (0.0, top / 2, top)}
            axes = sheet.chart(x, y + 14, CELL, ROW - 34, (0, float(curves.steps[-1])), rules)
            if name == "entropy":
                sheet.curve([(0, even), (float(curves.steps[-1]), even)], FADED, 0.8, axes=axes)
            points = zip(curves.steps.tolist(), values[:, place].tolist(), strict=True)
            sheet.curve(list(points), INK, 1.6, axes=axes)
            sheet.text(x + 2, y + 8, str(head), SMALL, colour=FADED)
    sheet.save(path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw(open_history(sys.argv[1]), PICTURE)
    else:
        with tempfile.TemporaryDirectory() as place:
            train(Path(place) / "heads")
            draw(open_history(Path(place) / "heads"), PICTURE)
