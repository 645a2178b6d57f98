"""Flags that keep XLA from choosing kernels by chance."""

import os

from launch.repeatable import FLAGS, compile_repeatably


def test_what_the_user_has_set_stays(monkeypatch):
    first, second = FLAGS
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=x --{first}=4")
    compile_repeatably()
    compile_repeatably()
    assert os.environ["XLA_FLAGS"].split() == [
        "--xla_dump_to=x", f"--{first}=4", f"--{second}={FLAGS[second]}"
    ]  # fmt: skip
