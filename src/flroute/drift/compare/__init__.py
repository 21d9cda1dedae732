"""One model on two devices, layer by layer and op by op."""
