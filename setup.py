"""Lists the packages; everything else about the distribution is in pyproject.toml.

`lowering/` and `kernels/` lie beside `attn_dsl/` and install inside it. setuptools can place a package elsewhere
declaratively (`package-dir`), but its declarative finder cannot rename what it finds, so the list is computed here.
"""

from setuptools import find_packages, setup

packages = find_packages(include=["attn_dsl", "attn_dsl.*"])
for room in ("lowering", "kernels"):
    packages += [f"attn_dsl.{name}" for name in find_packages(include=[room, f"{room}.*"])]

setup(packages=packages)
