"""Packaging of bayesmem: the requirements stand in requirements.txt, once."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def requirements() -> dict[str, list[str]]:
    """Returns the requirement lines of each extra, those of the core under ""."""
    lists: dict[str, list[str]] = {"": []}
    extra = ""
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        heading = re.fullmatch(r"# \[(\w+)\]", line)
        if heading:
            extra = heading[1]
            lists[extra] = []
        elif line and not line.startswith("#"):
            lists[extra].append(line)
    return lists


LISTS = requirements()
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "bayesmem/__init__.py").read_text())[1]

setup(
    name="bayesmem",
    version=VERSION,
    description="Sequence layers with an explicit, bounded memory, in JAX and Flax.",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["bayesmem", "bayesmem.*", "kernels_pallas", "kernels_pallas.*"]),
    package_data={"bayesmem": ["py.typed", "ops/**/*.md"]},
    install_requires=LISTS.pop(""),
    extras_require=LISTS,
)
