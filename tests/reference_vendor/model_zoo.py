"""The families of models that people bring to a device, each as small as it can be and still be itself.

Vision models are written out; the others are transformers' own classes with random weights, so nothing is downloaded.
Dropout is on wherever a family has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers

transformers.logging.set_verbosity_error()

Inputs = dict[str, Tensor]
WORDS = 40
"""The size of each vocabulary."""


@dataclass(frozen=True)
class Family:
    """How to make a model and a batch for it; both draw from the generators as they stand."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def made(family: str, seed: int = 0) -> tuple[nn.Module, Inputs]:
    """A model of a family and a batch for it, on the host: the same ones for the same seed."""
    sow(seed)
    return FAMILIES[family].make(), FAMILIES[family].inputs()


def sow(seed: int) -> None:
    """Seed what models draw from: dropout is PyTorch's, the spans that wav2vec2 masks are numpy's."""
    torch.manual_seed(seed)
    np.random.seed(seed)


def moved(inputs: Inputs, device: str) -> Inputs:
    return {name: tensor.to(device) for name, tensor in inputs.items()}


def outcome(model: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Loss and logits."""
    answer = model(**inputs)
    return answer if isinstance(answer, tuple) else (answer.loss, answer.logits)


class Classifier(nn.Module):
    """Any network that gives logits, with cross entropy as its loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layers(x)
        return functional.cross_entropy(logits, labels), logits


class Residual(nn.Module):
    """``after(main(x) + shortcut(x))``."""

    def __init__(
        self, main: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.main, self.shortcut, self.after = main, shortcut or nn.Identity(), after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.main(x) + self.shortcut(x))


class Permuted(nn.Module):
    """``inner`` over images whose channels come last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Scaled(nn.Module):
    """``inner``, each channel times a number that is learnt."""

    def __init__(self, inner: nn.Module, channels: int) -> None:
        super().__init__()
        self.inner, self.scale = inner, nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


# -- vision -------------------------------------------------------------------------------------------


def images() -> Inputs:
    return {"x": torch.randn(4, 3, 16, 16), "labels": torch.randint(0, 5, (4,))}


def perceptron() -> nn.Module:
    return Classifier(
        nn.Flatten(), nn.Linear(768, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1),
        nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 5),
    )  # fmt: skip


def _basic_block(channels: int, out: int, stride: int) -> nn.Module:
    shortcut = (
        nn.Identity()
        if stride == 1
        else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    )
    main = nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out),
    )  # fmt: skip
    return Residual(main, shortcut, nn.ReLU(inplace=True))


def resnet() -> nn.Module:
    """He et al., 2015: a stem, then stages of two convolutions around a shortcut."""
    return Classifier(
        nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
        _basic_block(8, 8, 1), _basic_block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def convnext() -> nn.Module:
    """Liu et al., 2022: a depthwise convolution, then a perceptron over channels, scaled per channel."""
    perceptron = nn.Sequential(nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    block = nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), Permuted(Scaled(perceptron, 8)))
    return Classifier(
        nn.Conv2d(3, 8, 4, stride=4), Permuted(nn.LayerNorm(8)), Residual(block),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 5),
    )  # fmt: skip


class SpatialAttention(nn.Module):
    """Self-attention over the positions of an image."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.attention = nn.MultiheadAttention(channels, heads, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        positions = self.norm(x).flatten(2).transpose(1, 2)
        seen, _ = self.attention(positions, positions, positions, need_weights=False)
        return seen.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Ronneberger et al., 2015, as diffusion models have it: group norm, attention at the bottom, two ways up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU())
        self.bottom = nn.Sequential(
            nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
            Residual(SpatialAttention(8, 2)),
        )  # fmt: skip
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Sequential(
            nn.Conv2d(24, 8, 3, padding=1, padding_mode="reflect"), nn.GroupNorm(4, 8), nn.SiLU(),
            nn.Dropout2d(0.2), nn.Conv2d(8, 3, 1),
        )  # fmt: skip

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        high = self.down(x)
        low = self.bottom(high)
        smooth = functional.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        sharp = functional.interpolate(self.up(low), size=x.shape[-2:], mode="nearest")
        made = self.out(torch.cat([high, smooth, sharp], 1))
        return functional.mse_loss(made, target), made


def noisy_images() -> Inputs:
    return {"x": torch.randn(2, 3, 16, 16), "target": torch.randn(2, 3, 16, 16)}


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, num_labels=5, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def pixels() -> Inputs:
    batch = images()
    return {"pixel_values": batch["x"], "labels": batch["labels"]}


# -- language -----------------------------------------------------------------------------------------


def sentences() -> Inputs:
    """Two sentences, one of them padded on the right."""
    words = torch.randint(3, WORDS, (2, 7))
    mask = torch.ones_like(words)
    mask[1, 5:] = 0
    return {"input_ids": words, "attention_mask": mask, "labels": words.masked_fill(mask == 0, -100)}


def reviews() -> Inputs:
    return {**sentences(), "labels": torch.randint(0, 3, (2,))}


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config)


def _decoder(config: type[Any], model: Callable[[Any], nn.Module], **options: Any) -> nn.Module:
    """What Llama and its descendants share: two query heads to each key, rotary positions, gated perceptrons."""
    return model(
        config(
            vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32, attention_dropout=0.1,
            bos_token_id=1, eos_token_id=2, **options,
        )
    )  # fmt: skip


def llama() -> nn.Module:
    return _decoder(transformers.LlamaConfig, transformers.LlamaForCausalLM)


def qwen2() -> nn.Module:
    return _decoder(transformers.Qwen2Config, transformers.Qwen2ForCausalLM, tie_word_embeddings=True)


def mixtral() -> nn.Module:
    return _decoder(
        transformers.MixtralConfig, transformers.MixtralForCausalLM,
        num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
    )  # fmt: skip


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def mamba() -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        state_size=4,
        num_hidden_layers=2,
        intermediate_size=32,
        time_step_rank=2,
    )
    return transformers.MambaForCausalLM(config)


class Translator(nn.Module):
    """PyTorch's own transformer: an encoder that ignores padding, a causal decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16, padding_idx=0)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        padding = attention_mask == 0
        causal = nn.Transformer.generate_square_subsequent_mask(6, device=labels.device)
        answer = self.transformer(
            self.words(input_ids.masked_fill(padding, 0)), self.words(input_ids[:, :-1]), tgt_mask=causal,
            src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        logits = self.head(answer)
        return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()), logits


class Recurrent(nn.Module):
    """Two layers, both directions, dropout in between."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(12, 3)
        self.layers = kind(8, 6, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(input_ids), attention_mask.sum(1).cpu(), batch_first=True
        )
        output, _ = nn.utils.rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True)
        logits = self.head(output.mean(1))
        return functional.cross_entropy(logits, labels), logits


# -- speech -------------------------------------------------------------------------------------------


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_source_positions=8, max_target_positions=16, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def spectra() -> Inputs:
    return {"input_features": torch.randn(2, 8, 16), "labels": torch.randint(3, WORDS, (2, 5))}


def wav2vec2() -> nn.Module:
    config = transformers.Wav2Vec2Config(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        conv_dim=(8, 8, 8), conv_stride=(4, 2, 2), conv_kernel=(8, 3, 2), num_feat_extract_layers=3,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_length=2, mask_time_prob=0.3,
        layerdrop=0.0, pad_token_id=0, ctc_loss_reduction="mean",
    )  # fmt: skip
    return transformers.Wav2Vec2ForCTC(config)


def sounds() -> Inputs:
    mask = torch.ones(2, 320, dtype=torch.int64)
    mask[1, 240:] = 0
    return {
        "input_values": torch.randn(2, 320),
        "attention_mask": mask,
        "labels": torch.randint(1, WORDS, (2, 4)),
    }


FAMILIES: dict[str, Family] = {
    "MLP": Family(perceptron, images),
    "ResNet": Family(resnet, images),
    "ConvNeXt": Family(convnext, images),
    "U-Net": Family(UNet, noisy_images),
    "ViT": Family(vit, pixels),
    "transformer": Family(Translator, sentences),
    "BERT": Family(bert, reviews),
    "GPT-2": Family(gpt2, sentences),
    "Llama": Family(llama, sentences),
    "Qwen2": Family(qwen2, sentences),
    "Mixtral": Family(mixtral, sentences),
    "T5": Family(t5, sentences),
    "Mamba": Family(mamba, sentences),
    "Whisper": Family(whisper, spectra),
    "wav2vec2": Family(wav2vec2, sounds),
    "LSTM": Family(lambda: Recurrent(nn.LSTM), reviews),
    "GRU": Family(lambda: Recurrent(nn.GRU), reviews),
}
