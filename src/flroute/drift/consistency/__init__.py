"""One checkpoint as it is trained and as it is served."""
