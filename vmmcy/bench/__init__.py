"""``python -m vmmcy.bench``: what a caller pays, beside a peer's way and beside the floor.

Each room measures one system: `walk`, `arena`, `reservation`. `plain_python` is how
engines write the same work over ``cuda.bindings``, `_peers.c` how they write an
allocator; `_floor` calls the driver and allocators from C, with nothing around them.
"""
