"""What the OpenVINO engine refuses; what its caches compute is in test_cache.py."""

import pytest

from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.types import ModelSpec


@pytest.mark.model
def test_an_unknown_device_or_precision_is_named_with_the_choices() -> None:
    with pytest.raises(DerbyError, match=r"'TPU'.*CPU"):
        LoadedModels().get(ModelSpec(device="TPU"), print)
    with pytest.raises(DerbyError, match=r"fp32, int8, int4, .*'fp64'"):
        LoadedModels().get(ModelSpec(precision="fp64"), print)
