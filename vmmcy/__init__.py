"""The CUDA virtual-memory layer for LLM serving engines."""

from vmmcy import _loader

_loader.select_driver()
