"""The kernels themselves, in Triton. Only importing a module of this folder imports Triton.

Kernels compute in float32 what is stored in less, and round once. Block sizes are constants of a launch.
"""
