"""Commands of ``flroute`` that are more than a few lines, and what all commands share."""
