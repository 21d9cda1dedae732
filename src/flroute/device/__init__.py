"""The device ``fl``: tensors, memory, random numbers, ``torch.fl``.

``table`` says which devices there are; ``capsule`` makes tensors and accounts for them; ``tensors`` moves values in and
out; ``torch_fl`` is ``torch.fl``; ``guard``, ``parameters``, ``serialization`` and ``process_cures`` are what PyTorch needs
besides.
"""
