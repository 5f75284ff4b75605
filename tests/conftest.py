"""What holds for all tests, wherever and however busy the machine is that runs them."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example's time says how busy the machine is: nothing of what is tested.
settings.register_profile("derby", deadline=None)
settings.load_profile("derby")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Operations as small as those of tiny models only wait for a second thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
