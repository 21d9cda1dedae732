import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
if device != "cuda":
    print("warning: no GPU found, this will be slow")


def build(kind):
    torch.manual_seed(0)
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=63,
            initializer_range=0.3,
        )
        return GPT2LMHeadModel(config).eval().to(device)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=63, pad_token_id=0,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval().cuda()


@torch.inference_mode()
def generate(model, prompt, **kwargs):
    inputs = {"input_ids": torch.tensor([prompt]), "attention_mask": torch.ones(1, len(prompt), dtype=torch.long)}
    inputs = {k: v.to(model.device) for k, v in inputs.items()}
    torch.cuda.synchronize()
    t0 = time.time()
    output = model.generate(**inputs, max_new_tokens=12, pad_token_id=0, **kwargs)
    torch.cuda.synchronize()
    print("%.1f tokens/s" % ((output.shape[1] - len(prompt)) / (time.time() - t0)))
    return output[0].tolist()


@torch.no_grad()
def perplexity(model, tokens):
    ids = torch.tensor([tokens], device=device)
    return torch.exp(model(ids, labels=ids).loss).item()


for kind in ("gpt2", "llama"):
    model = build(kind)
    greedy = generate(model, [5, 17, 3], do_sample=False)
    beams = generate(model, [5, 17, 3], do_sample=False, num_beams=3)
    print(kind, greedy)
    print(f"{kind}_greedy_sum {sum(greedy)}")
    print(f"{kind}_beam_sum {sum(beams)}")
    print(f"{kind}_perplexity {perplexity(model, [5, 17, 3, 9, 41, 2]):.4f}")
    del model
    torch.cuda.empty_cache()
