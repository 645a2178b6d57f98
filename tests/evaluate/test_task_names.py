"""How tasks are named."""

import pytest

from bayesmem.evaluate.task_names import CHOICES, FILES, GROUPS, TaskName, parse_tasks


def test_parts_of_a_name():
    assert parse_tasks(["test", "ppl@128", "squad:my/own.jsonl", "niah_single_2@64:a/b.txt"]) == [
        TaskName("test"),
        TaskName("ppl", 128),
        TaskName("squad", None, "my/own.jsonl"),
        TaskName("niah_single_2", 64, "a/b.txt"),
    ]


def test_groups_and_repetitions():
    names = parse_tasks(["niah@256", "niah_single_1@256", "zeroshot"])
    assert [name.task for name in names] == [*GROUPS["niah"], "lambada", *CHOICES]
    assert {name.length for name in names[:8]} == {256}
    assert set(sum(GROUPS.values(), ())) <= set(FILES)


def test_names_of_result_files():
    files = [name.file_name for name in parse_tasks(["ppl", "ppl@64", "ppl:../lm/w 2/test.txt"])]
    assert files == ["ppl", "ppl@64", "ppl_w-2_test"]
    (here,) = parse_tasks(["nq@512:q.jsonl"])
    assert here.file_name == "nq@512_q"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("swag", "found 'swag', wanted NAME.*hellaswag.*or a group: niah"),
        ("", "found ''"),
        ("ppl@", "the length ''"),
        ("ppl@0", "the length '0'"),
        ("ppl@1k", "the length '1k'"),
        ("lambada@64", "found a length in 'lambada@64', wanted none for 'lambada'"),
        ("test@64", "wanted 'test' without length or file"),
        ("test:a", "wanted 'test' without length or file"),
    ],
)
def test_bad_names(name, words):
    with pytest.raises(ValueError, match=words):
        parse_tasks([name])
