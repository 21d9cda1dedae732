import os

os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0,1")

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

input_size, output_size, batch_size, data_size = 5, 2, 30, 90

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(8)


class Model(nn.Module):
    # Our model

    def __init__(self, input_size, output_size):
        super(Model, self).__init__()
        self.gru = nn.GRU(input_size, 12, batch_first=True)
        self.fc = nn.Linear(12, output_size)

    def forward(self, input):
        self.gru.flatten_parameters()
        output, _ = self.gru(input)
        return self.fc(output[:, -1])


class ModelWithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.criterion = nn.MSELoss(reduction="none")

    def forward(self, x, y):
        return self.criterion(self.model(x), y).mean(dim=1)


model = ModelWithLoss(Model(input_size, output_size))
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
model = nn.DataParallel(model, device_ids=list(range(torch.cuda.device_count())))
model.to(device)

data = torch.randn(data_size, 7, input_size)
goal = torch.stack([data.sum(dim=(1, 2)), data[:, 0].prod(dim=1)], dim=1)
loader = DataLoader(TensorDataset(data, goal), batch_size=batch_size, shuffle=True, pin_memory=True,
                    generator=torch.Generator().manual_seed(8))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

for epoch in range(3):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        losses = model(x, y)
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

state = {k.replace("module.", ""): v.cpu() for k, v in model.state_dict().items()}
plain = ModelWithLoss(Model(input_size, output_size))
plain.load_state_dict(state)
print("samples %d" % losses.size(0))
print("loss %.5f" % loss.item())
print("on_host %.5f" % plain(data, goal).mean().item())
