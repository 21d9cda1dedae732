import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.autograd import Variable

parser = argparse.ArgumentParser()
parser.add_argument("--n_steps", type=int, default=40, help="number of steps of training")
parser.add_argument("--batch_size", type=int, default=64, help="size of the batches")
parser.add_argument("--lr", type=float, default=0.002, help="adam: learning rate")
parser.add_argument("--b1", type=float, default=0.5, help="adam: decay of first order momentum of gradient")
parser.add_argument("--latent_dim", type=int, default=8, help="dimensionality of the latent space")
opt = parser.parse_args()

np.random.seed(0)
torch.manual_seed(0)

cuda = True if torch.cuda.is_available() else False


class Generator(nn.Module):
    def __init__(self):
        super(Generator, self).__init__()

        def block(in_feat, out_feat, normalize=True):
            layers = [nn.Linear(in_feat, out_feat)]
            if normalize:
                layers.append(nn.BatchNorm1d(out_feat, 0.8))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
            return layers

        self.model = nn.Sequential(
            *block(opt.latent_dim, 32, normalize=False), *block(32, 64), nn.Linear(64, 2), nn.Tanh()
        )

    def forward(self, z):
        return self.model(z)


class Discriminator(nn.Module):
    def __init__(self):
        super(Discriminator, self).__init__()
        self.model = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2, inplace=True), nn.Linear(64, 1), nn.Sigmoid()
        )

    def forward(self, point):
        return self.model(point)


# Loss function
adversarial_loss = torch.nn.BCELoss()

# Initialize generator and discriminator
generator = Generator()
discriminator = Discriminator()

if cuda:
    generator.cuda()
    discriminator.cuda()
    adversarial_loss.cuda()

optimizer_G = torch.optim.Adam(generator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=opt.lr, betas=(opt.b1, 0.999))

Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor

# Points on a ring
angles = np.random.uniform(0, 2 * np.pi, (opt.n_steps, opt.batch_size))
rings = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * 0.8

for step in range(opt.n_steps):
    # Adversarial ground truths
    valid = Variable(Tensor(opt.batch_size, 1).fill_(1.0), requires_grad=False)
    fake = Variable(Tensor(opt.batch_size, 1).fill_(0.0), requires_grad=False)
    real_points = Variable(torch.from_numpy(rings[step]).type(Tensor))

    #  Train Generator
    optimizer_G.zero_grad()
    z = Variable(Tensor(np.random.normal(0, 1, (opt.batch_size, opt.latent_dim))))
    gen_points = generator(z)
    g_loss = adversarial_loss(discriminator(gen_points), valid)
    g_loss.backward()
    optimizer_G.step()

    #  Train Discriminator
    optimizer_D.zero_grad()
    real_loss = adversarial_loss(discriminator(real_points), valid)
    fake_loss = adversarial_loss(discriminator(gen_points.detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    optimizer_D.step()

    if step % 10 == 0:
        print("[Step %d/%d] [D loss: %f] [G loss: %f]" % (step, opt.n_steps, d_loss.item(), g_loss.item()))

print("d_loss %.6f" % d_loss.item())
print("g_loss %.6f" % g_loss.item())
