"""Some seconds of the long run; ``python tests/long_run.py`` is the rest."""

import pytest
from long_run import run

from vmmcy import _loader


@pytest.mark.parametrize("seed", [1, 2])
def test_sixteen_threads_and_a_model_agree(seed):
    done, differences = run(4000, 16, seed, faults=_loader.simulator_is_loaded())
    assert differences == []
    assert sum(done.values()) == 4000
    assert set(done) >= {
        "commit",
        "decommit_after",
        "synchronize",
        "use_pool",
        "contend",
        "commit_many",
    }


def test_every_byte_is_where_it_was_put():
    done, differences = run(600, 4, 3, check_bytes=True)
    assert differences == []
    assert sum(done.values()) == 600
