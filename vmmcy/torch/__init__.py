"""The rooms that import torch: nothing outside this folder does.

They come with ``pip install vmmcy[torch]``. Importing this package alone loads none of
them, nor torch.
"""
