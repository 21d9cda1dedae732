"""Handwritten digits, 8 by 8 pixels, from scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def digit_loaders(batch_size=64):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size, shuffle=True, pin_memory=True),
        DataLoader(TensorDataset(images[test], labels[test]), batch_size, pin_memory=True),
    )


def mixup(images, alpha=0.4):
    """Blend each image with another of its batch."""
    share = torch.distributions.Beta(torch.tensor(alpha).cuda(), torch.tensor(alpha).cuda()).sample()
    partner = torch.randperm(images.size(0), device="cuda")
    return share * images + (1 - share) * images[partner], partner, share
