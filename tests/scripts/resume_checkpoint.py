import os
import shutil
import tempfile

import torch
import torch.nn as nn

CKPT_DIR = tempfile.mkdtemp()


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    path = os.path.join(CKPT_DIR, filename)
    torch.save(state, path)
    if is_best:
        shutil.copyfile(path, os.path.join(CKPT_DIR, "model_best.pth.tar"))


def make_model():
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))


def make_data():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(128, 12, generator=g)
    y = x[:, :3].argmax(dim=1)
    return x.cuda(0), y.cuda(0)


def train(model, optimizer, x, y, epochs, start_epoch=0):
    best = float("inf")
    for epoch in range(start_epoch, epochs):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        is_best = loss.item() < best
        best = min(loss.item(), best)
        save_checkpoint({
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "best": best,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
        }, is_best)
    return loss.item()


def resume(filename, gpu=None):
    # Map model to be loaded to specified single gpu.
    if gpu is None:
        checkpoint = torch.load(filename, weights_only=False)
    else:
        checkpoint = torch.load(filename, map_location="cuda:{}".format(gpu), weights_only=False)
    model = make_model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.load_state_dict(checkpoint["state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    print("=> loaded checkpoint (epoch {})".format(checkpoint["epoch"]))
    return model, optimizer, checkpoint


torch.manual_seed(11)
x, y = make_data()

# one run without interruption
model = make_model().cuda()
straight = train(model, torch.optim.Adam(model.parameters(), lr=0.01), x, y, epochs=8)

# the same, stopped half way
torch.manual_seed(11)
model = make_model().cuda()
train(model, torch.optim.Adam(model.parameters(), lr=0.01), x, y, epochs=4)
del model

checkpoint_file = os.path.join(CKPT_DIR, "checkpoint.pth.tar")
model, optimizer, checkpoint = resume(checkpoint_file, gpu=0)
torch.cuda.set_rng_state_all([state.cpu() for state in checkpoint["cuda_rng"]])
resumed = train(model, optimizer, x, y, epochs=8, start_epoch=checkpoint["epoch"])

# other ways to load the same file
best = os.path.join(CKPT_DIR, "model_best.pth.tar")
a = torch.load(best, map_location="cuda:0", weights_only=False)["state_dict"]
b = torch.load(best, map_location=lambda storage, loc: storage.cuda(0), weights_only=False)["state_dict"]
c = torch.load(best, map_location={"cuda:0": "cpu"}, weights_only=False)["state_dict"]
d = torch.load(best, map_location=torch.device("cuda", 0), weights_only=False)["state_dict"]
e = torch.load(best, weights_only=False)["state_dict"]
assert c["0.weight"].device.type == "cpu" and e["0.weight"].device == x.device
norms = [s["0.weight"].norm().item() for s in (a, b, c, d, e)]
shutil.rmtree(CKPT_DIR)

print("straight %.6f" % straight)
print("resumed %.6f" % resumed)
print("difference %.6f" % abs(straight - resumed))
print("norm %.5f" % norms[0])
print("norms_differ_by %.5f" % (max(norms) - min(norms)))
