"""The blocks that models are made of train on the device without a single fallback, to the host's numbers."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import flroute


class ResNetBlock(nn.Module):
    """He et al., 2015: two convolutions around a shortcut, here with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv2d(3, 8, 1, stride=2, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(functional.relu(self.main(x) + self.shortcut(x)), 3, 2, 1)


class ConvNeXtBlock(nn.Module):
    """Liu et al., 2022: a depthwise convolution, then a perceptron over channels, scaled per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.perceptron = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.scale = nn.Parameter(torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        return x + (self.scale * self.perceptron(self.norm(y))).permute(0, 3, 1, 2)


class Attention(nn.Module):
    """Self-attention over the positions of an image or a sequence (batch, positions, channels)."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inner, self.outer = (
            heads,
            nn.Linear(channels, 3 * channels),
            nn.Linear(channels, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inner(x).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.outer(seen.transpose(1, 2).flatten(2))


class UNet(nn.Module):
    """Ronneberger et al., 2015, as diffusion models have it: group norm, attention at the bottom, two ways up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.bottom = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.attention = Attention(8, 2)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Sequential(
            nn.Conv2d(24, 8, 3, padding=1, padding_mode="reflect"), nn.GroupNorm(4, 8), nn.SiLU(),
            nn.Dropout2d(0.2), nn.Conv2d(8, 3, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.bottom(functional.avg_pool2d(high, 2))
        positions = low.flatten(2).transpose(1, 2)
        low = (positions + self.attention(positions)).transpose(1, 2).reshape(low.shape)
        smooth = functional.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        sharp = functional.interpolate(self.up(low), size=x.shape[-2:], mode="nearest")
        return self.out(torch.cat([high, smooth, sharp], 1))


class ViTBlock(nn.Module):
    """Dosovitskiy et al., 2020: patches become a sequence, and a class token gathers what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 10, 16))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.attention = Attention(16, 4)
        self.perceptron = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        x = x + self.attention(self.norms[0](x))
        return (x + self.perceptron(self.norms[1](x)))[:, 0]


class Encoder(nn.Module):
    """A layer of an encoder of text: embeddings, attention with a padding mask, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(6, 16)
        self.register_buffer("positions", torch.arange(6))
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, activation="gelu", batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(self.positions[: words.shape[1]])
        return self.layer(x, src_key_padding_mask=words == 0)


class Decoder(nn.Module):
    """A layer of a decoder: causal attention to itself, then attention to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.memory = nn.Embedding(20, 16), nn.Parameter(torch.randn(1, 3, 16))
        self.layer = nn.TransformerDecoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        x = self.layer(self.words(words), self.memory.expand(len(words), -1, -1), mask, tgt_is_causal=True)
        return self.head(x)


class Recurrent(nn.Module):
    """Two layers, both directions, dropout in between."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layers = kind(8, 6, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        output, _ = self.layers(self.words(words))
        return output[:, -1]


def images() -> Tensor:
    return torch.randn(4, 3, 12, 12)


def sentences() -> Tensor:
    return torch.tensor([[3, 7, 1, 19, 4, 2], [5, 5, 9, 0, 0, 0], [8, 11, 2, 6, 0, 0]])


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "ResNet": (ResNetBlock, images),
    "ConvNeXt": (ConvNeXtBlock, images),
    "U-Net": (UNet, images),
    "ViT": (ViTBlock, images),
    "encoder": (Encoder, sentences),
    "decoder": (Decoder, sentences),
    "LSTM": (lambda: Recurrent(nn.LSTM), sentences),
    "GRU": (lambda: Recurrent(nn.GRU), sentences),
}

# The gradient of a bias of attention's keys is zero but for rounding, which Adam would scale up: hence its eps.
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "eps": 1e-4}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2, "eps": 1e-4}),
}


def _train(
    model: nn.Module, x: Tensor, optimizer: Any, options: dict[str, Any], steps: int
) -> tuple[list[float], list[Tensor], list[Tensor]]:
    """The losses of a few steps; the gradients of the first; the parameters and statistics of the last."""
    step = optimizer(model.parameters(), **options)
    losses, gradients = [], []
    for number in range(steps):
        torch.manual_seed(number)  # for dropout
        step.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        gradients = gradients or [p.grad.clone() for p in model.parameters() if p.grad is not None]
        step.step()
        losses.append(loss.item())
    return losses, gradients, [t.detach() for t in model.state_dict().values()]


@pytest.mark.parametrize("foreach", [False, True], ids=["one by one", "foreach"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_trains_as_on_the_host(block: str, optimizer: str, foreach: bool) -> None:
    make, inputs = BLOCKS[block]
    kind, options = OPTIMIZERS[optimizer]
    torch.manual_seed(0)
    host, x = make(), inputs()
    there, x_there = copy.deepcopy(host).to("fl:0"), x.to("fl:0")
    expected = _train(host, x, kind, {**options, "foreach": foreach}, steps=2)
    with flroute.enable(device="reference", fallback="error") as session:
        made = _train(there, x_there, kind, {**options, "foreach": foreach}, steps=2)
    assert not session.fallbacks
    assert made[0] == pytest.approx(expected[0], rel=1e-4)
    for ours, theirs in zip(made[1] + made[2], expected[1] + expected[2], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_answers_as_on_the_host(
    block: str, mode: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    make, inputs = BLOCKS[block]
    torch.manual_seed(0)
    host, x = make().eval(), inputs()
    there, x_there = copy.deepcopy(host).to("fl:0"), x.to("fl:0")
    with mode():
        expected = host(x)
        with flroute.enable(device="reference", fallback="error") as session:
            made = there(x_there)
    assert not session.fallbacks
    torch.testing.assert_close(made.cpu(), expected, rtol=1e-4, atol=1e-5)
