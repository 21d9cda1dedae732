"""Which ops spoil a metric, by the metric alone."""
