#!/usr/bin/env python
# Character level language model with an LSTM. Needs a GPU.
import math
import time

import torch
from torch import nn

TEXT = """
the quick brown fox jumps over the lazy dog. the dog sleeps, the fox runs on.
a language model reads one letter after the other and guesses the next one.
""" * 8

assert torch.cuda.is_available(), "This script needs a GPU"
torch.cuda.set_device(0)
torch.manual_seed(1234)
print("GPU:", torch.cuda.get_device_name(0))

chars = sorted(set(TEXT))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in TEXT], dtype=torch.long).cuda()
ntokens = len(chars)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(out), hidden


def repackage_hidden(h):
    """Wraps hidden states in new Tensors, to detach them from their history."""
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


model = RNNModel(ntokens, 16, 24, 2).cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train_data = batchify(data, 8)
bptt = 16

torch.cuda.synchronize()
start = time.perf_counter()
hidden = model.init_hidden(8)
for epoch in range(2):
    total = 0.0
    for i in range(0, train_data.size(0) - 1 - bptt, bptt):
        x, y = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt]
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(x, hidden)
        loss = criterion(output.view(-1, ntokens), y.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
torch.cuda.synchronize()
print("%.2f s for 2 epochs" % (time.perf_counter() - start))

# greedy continuation
model.eval()
with torch.no_grad():
    h = model.init_hidden(1)
    idx = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    out = []
    for _ in range(20):
        logits, h = model(idx, h)
        idx = logits[-1].argmax(-1, keepdim=True)
        out.append(chars[idx.item()])
print(repr("".join(out)))
print("loss %.6f" % loss.item())
print("perplexity %.5f" % math.exp(loss.item()))
