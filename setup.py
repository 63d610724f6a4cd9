"""Build of the compiled rooms and of the simulated driver.

Everything declarative is in ``pyproject.toml``. ``VMMCY_WERROR=1`` turns the
compilers' warnings into errors, as the project's own checks do.
"""

import os
import re
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SIMULATOR = "vmmcy.sim.libcuda"
SIMULATOR_FILE = "libcuda.so.1"
TOOLKIT = Path("/usr/local/cuda/include")


def cuda_version(include: Path) -> int:
    """CUDA_VERSION of the ``cuda.h`` in `include`, 0 where there is none."""
    header = include / "cuda.h"
    if not header.is_file():
        return 0
    found = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header.read_text(errors="replace"))
    return int(found.group(1)) if found else 0


def cuda_include() -> Path:
    """Folder of ``cuda.h``: the newest wheel's, so that an old toolkit cannot win."""
    wheels = [
        include
        for entry in dict.fromkeys(sys.path)
        for include in Path(entry or ".").glob("nvidia/*/include")
        if cuda_version(include)
    ]
    if wheels:
        return max(wheels, key=cuda_version)
    homes = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME")]
    for include in [*(Path(home) / "include" for home in homes if home), TOOLKIT]:
        if cuda_version(include):
            return include
    raise SystemExit(
        "vmmcy needs cuda.h to build and found none: run 'pip install nvidia-cuda-runtime', "
        "or set CUDA_HOME to a CUDA toolkit."
    )


INCLUDES = ["vmmcy/_include", "vmmcy/_native", "vmmcy/bench", str(cuda_include())]
WERROR = ["-Werror"] if os.environ.get("VMMCY_WERROR") == "1" else []
WARNINGS = ["-Wall", *WERROR]
C_WARNINGS = ["-Wall", "-Wextra", *WERROR]
CYTHON_DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "freethreading_compatible": True,
}


def files(folder: str, pattern: str) -> list[str]:
    """Return the files of `folder` that match `pattern`, in a stable order."""
    return sorted(str(path) for path in Path(folder).glob(pattern))


def cython_module(name: str, *c_sources: str) -> Extension:
    """Build one ``.pyx`` room as C++, with the plain C files that belong to it."""
    return Extension(
        name,
        [name.replace(".", "/") + ".pyx", *c_sources],
        language="c++",
        include_dirs=INCLUDES,
        extra_compile_args=["-O3", "-fvisibility=hidden", *WARNINGS],
        extra_link_args=["-pthread"],
        depends=files("vmmcy/_native", "*.h"),
    )


def simulator() -> Extension:
    """Build the CPU-only ``libcuda.so.1``: a plain shared library, not a Python module."""
    return Extension(
        SIMULATOR,
        files("vmmcy/sim", "*.c"),
        include_dirs=["vmmcy/sim", *INCLUDES],
        extra_compile_args=["-O2", "-std=gnu11", "-fvisibility=hidden", *C_WARNINGS],
        extra_link_args=["-pthread", f"-Wl,-soname,{SIMULATOR_FILE}"],
        depends=files("vmmcy/sim", "*.h"),
    )


class BuildExt(build_ext):
    """``build_ext`` that gives the simulator the file name a driver has."""

    def get_ext_filename(self, fullname: str) -> str:
        """Path of the built file, relative to the build's root."""
        if fullname.split(".")[-1] == SIMULATOR.split(".")[-1]:
            return str(Path(*fullname.split(".")[:-1], SIMULATOR_FILE))
        return super().get_ext_filename(fullname)


setup(
    ext_modules=[
        *cythonize(
            [
                cython_module("vmmcy._driver"),
                cython_module("vmmcy._extents", "vmmcy/_native/extents.c"),
                cython_module("vmmcy._arena", *files("vmmcy/_native", "*.c")),
                cython_module("vmmcy._walk"),
                cython_module("vmmcy._graph_inputs"),
                cython_module("vmmcy._ledger"),
                cython_module("vmmcy._fences"),
                cython_module("vmmcy._outcome"),
                cython_module("vmmcy._wiping"),
                cython_module("vmmcy._handle_pool"),
                cython_module("vmmcy._mapping"),
                cython_module("vmmcy._departing"),
                cython_module("vmmcy._reserved_range"),
                cython_module("vmmcy._reservation"),
                cython_module("vmmcy._batches"),
                cython_module("vmmcy._host_copy"),
                cython_module("vmmcy._backing"),
                cython_module("vmmcy._segments"),
                cython_module("vmmcy._properties"),
                cython_module("vmmcy._stream_order"),
                cython_module("vmmcy.torch._dlpack"),
                cython_module("vmmcy.bench._floor", *files("vmmcy/bench", "*.c")),
            ],
            build_dir="build/cython",
            compiler_directives=CYTHON_DIRECTIVES,
        ),
        simulator(),
    ],
    cmdclass={"build_ext": BuildExt},
)
