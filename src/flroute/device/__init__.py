"""The device ``fl``: tensors, memory, random numbers, ``torch.fl``.

``table`` says which devices there are; ``capsule`` makes tensors and accounts for them; ``tensors`` moves values in and
out; ``torch_fl`` is ``torch.fl``; ``guard``, ``parameters``, ``serialization`` and ``process_cures`` are what PyTorch needs
besides.

``flroute.device`` is also a function, and that is what the name means once ``flroute`` is imported: the modules here are reached by
``from flroute.device import table``, not as attributes of ``flroute.device``.
"""
