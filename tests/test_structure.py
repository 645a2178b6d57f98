"""The rules of structure: who may import whom, and how long a thing may be."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("bayesmem", "kernels_pallas", "configs", "launch")

# Room -> rooms (or single modules) that it may import besides itself; what is in no room of
# bayesmem, such as array_types, is open to all of bayesmem.
ROOMS = {
    "kernels_pallas": (),
    "configs": (),
    "bayesmem.ops": ("kernels_pallas",),
    "bayesmem.layers": ("bayesmem.ops",),
    "bayesmem.models": ("bayesmem.layers",),
    "bayesmem.data": (),
    "bayesmem.design_model": ("bayesmem.ops",),
    "bayesmem.train": ("bayesmem.models", "bayesmem.data"),
    "bayesmem.evaluate": (
        "bayesmem.models",
        "bayesmem.ops",
        "bayesmem.design_model",
        "bayesmem.data",
        "bayesmem.train",
        "kernels_pallas.shapes",
    ),
    "bayesmem.distill": ("bayesmem.models", "bayesmem.layers", "bayesmem.data", "bayesmem.train"),
    "bayesmem.interop": ("bayesmem.models", "bayesmem.layers", "bayesmem.data", "bayesmem.train"),
    "bayesmem.plots": ("bayesmem.train.records",),
    "launch": ("bayesmem", "configs", "kernels_pallas.shapes"),
}
# Third-party packages (and the standard library) that the closed rooms may import.
OUTSIDE = {
    "kernels_pallas": {"jax", "jaxlib", "numpy", "triton", "jax_triton"},
    "configs": {"ml_collections"},
}
FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "wrapper", "misc")
# The harness takes a model only if it inherits from its own class.
BASES = ("nn.Module", "NamedTuple", "Protocol", "Exception", "lm_eval.api.model.LM")


def sources(*folders):
    """Python files below folders of the repository."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def relative(path):
    return path.relative_to(ROOT).as_posix()


def module(path):
    """Dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Dotted names of all that a file imports, also inside of functions."""
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def within(name, room):
    return name == room or name.startswith(room + ".")


def room_of(name):
    """The room that a module is in, or None."""
    return next((room for room in ROOMS if within(name, room)), None)


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=relative)
def test_imports_go_one_way(path):
    room = room_of(module(path))
    for name in imported(path):
        target = room_of(name)
        if room is None:
            assert target is None or path.name == "__init__.py", f"{module(path)} imports {name}"
        elif target not in (None, room):
            allowed = any(within(name, other) for other in ROOMS[room])
            assert allowed, f"{module(path)} imports {name}"
        top = name.split(".")[0]
        if room in OUTSIDE and top != room and top not in sys.stdlib_module_names:
            assert top in OUTSIDE[room], f"{module(path)} imports {name}"


def test_only_dispatch_reaches_for_kernels():
    for path in sources("bayesmem"):
        kernels = {name for name in imported(path) if within(name, "kernels_pallas")}
        kernels = {name for name in kernels if not within(name, "kernels_pallas.shapes")}
        assert not kernels, f"{relative(path)} imports kernels at its own import"
        spoken = "kernels_pallas.{" in path.read_text(encoding="utf-8")
        assert spoken == (relative(path) == "bayesmem/ops/dispatch.py"), relative(path)


def test_data_of_loaders_does_without_jax():
    """Only tasks that are sampled on the device import JAX, and no other data imports those."""
    on_device = ("addressed", "collision", "random_keys")
    closed = ("jax", "flax", *(f"bayesmem.data.{name}" for name in on_device))
    for path in sources("bayesmem/data"):
        opened = [name for name in imported(path) for room in closed if within(name, room)]
        assert path.stem in on_device or not opened, f"{relative(path)}: {opened}"


@pytest.mark.parametrize("path", sources(*PACKAGES, "tests"), ids=relative)
def test_sizes_and_names(path):
    limit = {"kernels_pallas": 450, "tests": 400, "launch": 80}
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= limit.get(relative(path).split("/")[0], 300), f"{length} lines"
    if relative(path) != "configs/common.py":
        assert path.stem not in FORBIDDEN_NAMES


def functions(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def public(path):
    """Whether a file is the public side of an op, whose functions may have many parameters."""
    return relative(path).startswith("bayesmem/ops/") or path.parent.parent.name == "kernels_pallas"


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=relative)
def test_functions_are_short_and_take_few_parameters(path):
    longest = 150 if relative(path).startswith("kernels_pallas/") else 60
    for function in functions(parse(path)):
        length = function.end_lineno - function.lineno + 1
        if ast.get_docstring(function) is not None:
            docstring = function.body[0]
            length -= docstring.end_lineno - docstring.lineno + 1
        assert length <= longest, f"{function.name}: {length} lines"
        given = function.args
        names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        assert count <= 8 or public(path), f"{function.name}: {count} parameters"


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=relative)
def test_every_module_has_a_docstring_and_classes_inherit_little(path):
    tree = parse(path)
    assert ast.get_docstring(tree), "no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in map(ast.unparse, node.bases):
                known = base in BASES or base.endswith(("Error", "Exception"))
                assert known or base.startswith("Protocol["), f"{node.name}({base})"


def test_every_op_has_its_furniture():
    folders = sorted({path.parent for path in sources("bayesmem/ops")} - {ROOT / "bayesmem/ops"})
    assert {folder.name for folder in folders} >= {"kalman", "delta", "additive"}
    for folder in folders:
        assert (folder / "api.py").is_file(), relative(folder)
        lines = (folder / "reference.py").read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 60, f"{relative(folder)}/reference.py: {len(lines)} lines"


def test_importing_bayesmem_touches_neither_torch_nor_triton_nor_a_kernel():
    program = (
        "import sys, bayesmem, bayesmem.ops, bayesmem.models\n"
        "tops = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(tops & {'torch', 'triton', 'jax_triton', 'kernels_pallas'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_mqar_does_without_jax():
    program = "import sys, bayesmem.data.mqar; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
