"""A model in the shadow of a reference: each call computed twice."""
