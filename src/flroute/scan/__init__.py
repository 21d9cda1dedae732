"""``flroute scan``: what of a code base is bound to one kind of device, and the same code without."""
