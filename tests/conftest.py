"""Settings every test runs under."""

import os

# Before any test imports transformers: a model comes from a configuration or a package, never from a download.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from hypothesis import HealthCheck, settings

# "sample" is the default run: the same inputs every time, so a failure is repeatable and a pass is no luck.
# "sweep" (`make slow`) draws new inputs each time. Neither has a deadline: the first call in a process is slow.
settings.register_profile(
    "sample",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("sweep", settings.get_profile("sample"), derandomize=False)
settings.load_profile("sample")

# Parallel test processes share the cores already; torch's own threads on top only make them wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
