"""Packaging of bayesmem: the requirements stand in requirements.txt, once."""

import re
from pathlib import Path

from setuptools import find_packages, setup


def read(name: str) -> str:
    """Returns the text of a file of the repository."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def requirements() -> dict[str, list[str]]:
    """Returns the requirement lines of each extra, those of the core under ""."""
    lists: dict[str, list[str]] = {"": []}
    extra = ""
    for line in read("requirements.txt").splitlines():
        heading = re.fullmatch(r"# \[(\w+)\]", line)
        if heading:
            extra = heading[1]
            lists[extra] = []
        elif line and not line.startswith("#"):
            lists[extra].append(line)
    return lists


LISTS = requirements()

setup(
    name="bayesmem",
    version=re.findall(r'__version__ = "(.+)"', read("bayesmem/__init__.py"))[0],
    description="Sequence layers with an explicit, bounded memory, in JAX and Flax.",
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["bayesmem*", "kernels_pallas*"]),
    package_data={"bayesmem": ["py.typed", "**/*.md"]},
    install_requires=LISTS.pop(""),
    extras_require=LISTS,
)
