"""Generation: a batch is its rows one by one; stops, keys, errors; nothing given is changed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayesmem.models import LanguageModel, stack_params
from bayesmem.models.generate import (
    _Choice,
    _decode_block,
    decode,
    extend,
    generate,
    start,
)
from bayesmem.models.prefill import _read, prefill
from bayesmem.models.sampling import GREEDY, Sampling, row_keys
from tests.models.cases import MODELS, VOCAB, close, config, parameters

ROOM = 64
NEW = 12
PROMPTS = [np.random.default_rng(5).integers(0, VOCAB, size) for size in (1, 19, 6)]
RANDOM = Sampling(temperature=1.5, top_k=9, top_p=0.95)
each_model = pytest.mark.parametrize("name", MODELS)


def model(name="gated_deltanet"):
    return LanguageModel(config(name, max_length=ROOM))


def params(name="gated_deltanet"):
    return parameters(name)["params"]


@functools.cache
def stepwise(name, row, sampling=GREEDY):
    """Tokens of PROMPTS[row] from the plain definition: a whole pass for every token."""
    tokens, text = [], PROMPTS[row]
    key = row_keys(1, len(PROMPTS))[row]
    for step in range(NEW):
        padded = np.zeros((2, ROOM // 2), np.int32)  # one program for every length
        padded[:, : len(text)] = text
        ids = np.where(np.arange(ROOM // 2) < len(text), 0, -1)[None].repeat(2, axis=0)
        logits = _whole(name)({"params": params(name)}, padded, ids)[0, len(text) - 1]
        if sampling is GREEDY:
            new = int(np.argmax(logits))
        else:
            new = _draw(jax.random.fold_in(key, step), np.asarray(logits), sampling)
        tokens.append(new)
        text = np.append(text, new)
    return tokens


def _draw(key, logits, sampling):
    """The limits once more, over plain lists."""
    scores = logits / sampling.temperature
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order, mass = order[: sampling.top_k], 0.0
    weights = np.exp(scores[order] - scores.max())
    kept = []
    for token, weight in zip(order, weights / weights.sum(), strict=True):
        if mass < sampling.top_p:
            kept.append(token)
        mass += weight
    noise = jax.random.gumbel(key, scores.shape)
    return max(kept, key=lambda token: scores[token] + noise[token])


@functools.cache
def _whole(name):
    net = model(name)
    return jax.jit(lambda params, tokens, ids: net.apply(params, tokens, segment_ids=ids)[0])


@each_model
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "drawn"])
def test_a_batch_of_prompts_is_continued_as_by_the_definition(name, sampling):
    found = generate(
        model(name),
        params(name),
        PROMPTS,
        max_new_tokens=NEW,
        sampling=sampling,
        keys=row_keys(1, len(PROMPTS)),
    )
    assert [row.tolist() for row in found] == [stepwise(name, row, sampling) for row in range(3)]


def test_scanned_layers_continue_prompts_as_layers_one_by_one():
    plain, own = model("hybrid"), params("hybrid")
    scanned = LanguageModel(config("hybrid", max_length=ROOM, scan_layers=True))
    found = [
        generate(m, p, PROMPTS, max_new_tokens=NEW)
        for m, p in ((plain, own), (scanned, stack_params(own, 3)))
    ]
    assert [list(row) for row in found[0]] == [list(row) for row in found[1]]
    with pytest.raises(ValueError, match="max_length: the cache of layer 1 holds 64"):
        generate(scanned, stack_params(own, 3), PROMPTS, max_new_tokens=ROOM)


@each_model
def test_rows_that_end_rest_while_others_go_on(name):
    whole = [stepwise(name, row) for row in range(3)]
    stops = [[whole[0][3]], [], [whole[2][0], whole[2][5]]]
    wanted = [
        row[: min((row.index(stop) + 1 for stop in stop_row), default=NEW)]
        for row, stop_row in zip(whole, stops, strict=True)
    ]
    first = start(model(name), params(name), PROMPTS, row_keys(0, 3), max_new_tokens=2 * NEW)
    found, last = decode(
        model(name), params(name), first, max_new_tokens=NEW, stop_tokens=stops, block_size=5
    )
    assert [row.tolist() for row in found] == wanted
    assert last.token.tolist() == [row[-1] for row in wanted]
    assert last.drawn.tolist() == [len(row) for row in wanted]
    alone = start(model(name), params(name), [[*PROMPTS[0], *wanted[0]]], row_keys(0, 1))
    rows = jax.tree.map(lambda leaf: leaf[:1], last.state)
    jax.tree.map(close, rows, alone.state)


@pytest.mark.parametrize("chunk_size", [4, 7, 512])
def test_prefill_in_chunks_of_any_size_is_one_pass(chunk_size):
    rows = [np.arange(size) % VOCAB for size in (0, 13, 5)]
    for name in ("gated_deltanet", "hybrid"):
        fresh = jax.tree.map(jnp.copy, model(name).init_state(3))
        state = prefill(model(name), params(name), fresh, rows, chunk_size)
        for row, tokens in enumerate(rows):
            wanted = model(name).init_state(1)
            if len(tokens):
                _, wanted = jax.jit(model(name).apply)(
                    {"params": params(name)}, tokens[None].astype(np.int32), wanted
                )
            jax.tree.map(close, jax.tree.map(lambda leaf, r=row: leaf[r : r + 1], state), wanted)


def test_rows_of_more_than_a_chunk_share_a_program():
    before = _read._cache_size()
    for size in (17, 18, 30, 33):
        prefill(model(), params(), model().init_state(5), [np.zeros(size, int)] * 5, chunk_size=16)
    assert _read._cache_size() == before + 1


@pytest.mark.parametrize(
    ("rows", "chunk_size", "message"),
    [([], 16, "rows: found none"), ([[1]], 0, "chunk_size: found 0"), ([[1]], 1.5, "chunk_size")],
)
def test_prefill_names_what_is_wrong(rows, chunk_size, message):
    with pytest.raises(ValueError, match=message):
        prefill(model(), params(), model().init_state(1), rows, chunk_size)


def test_a_row_is_what_its_own_key_and_prompt_make():
    keys = row_keys(7, 3)
    call = functools.partial(
        generate, model(), params(), max_new_tokens=NEW, sampling=Sampling(temperature=2.0)
    )
    both = call([PROMPTS[1], PROMPTS[2], PROMPTS[1]], keys=keys)
    for row, prompt in enumerate([PROMPTS[1], PROMPTS[2], PROMPTS[1]]):
        assert call([prompt], keys=keys[row : row + 1])[0].tolist() == both[row].tolist()
    assert both[0].tolist() != both[2].tolist()
    again = call([PROMPTS[1], PROMPTS[2], PROMPTS[1]], keys=row_keys(7, 3))
    assert [row.tolist() for row in again] == [row.tolist() for row in both]


def test_blocks_of_any_size_and_calls_one_after_the_other_draw_the_same():
    first = start(model(), params(), PROMPTS, row_keys(1, 3))
    whole, _ = decode(model(), params(), first, max_new_tokens=NEW, sampling=RANDOM)
    given = []
    parts, middle = decode(
        model(), params(), first, max_new_tokens=5, sampling=RANDOM, block_size=2,
        on_tokens=given.append,
    )  # fmt: skip
    assert [len(block[0]) for block in given] == [2, 2, 1]
    rest, _ = decode(model(), params(), middle, max_new_tokens=NEW - 5, sampling=RANDOM)
    for row in range(3):
        assert [*parts[row], *rest[row]] == whole[row].tolist()


def test_the_listener_can_end_all_rows():
    first = start(model(), params(), PROMPTS, row_keys(1, 3))
    found, last = decode(
        model(), params(), first, max_new_tokens=NEW, block_size=2, on_tokens=lambda block: True
    )
    assert [len(row) for row in found] == [2, 2, 2] == last.drawn.tolist()


def test_further_prompts_of_any_lengths_are_read_after_the_last_token():
    more = [[], [3, 1, 4], [1]]
    first = start(model(), params(), PROMPTS, row_keys(1, 3))
    tokens, middle = decode(model(), params(), first, max_new_tokens=3, sampling=RANDOM)
    found = extend(model(), params(), middle, more)
    joined = [np.concatenate(parts) for parts in zip(PROMPTS, tokens, more, strict=True)]
    wanted = start(model(), params(), [row.astype(np.int32) for row in joined], row_keys(1, 3))
    assert found.token.tolist() == wanted.token.tolist()
    jax.tree.map(close, found.state, wanted.state)


@each_model
def test_given_rows_stay_as_they_were_and_the_loop_donates_its_own(name):
    first = start(model(name), params(name), PROMPTS, row_keys(1, 3), max_new_tokens=NEW)
    kept = jax.tree.map(np.array, first._replace(keys=jax.random.key_data(first.keys)))
    once, _ = decode(model(name), params(name), first, max_new_tokens=NEW, sampling=RANDOM)
    extend(model(name), params(name), first, [[1]] * 3)
    twice, _ = decode(model(name), params(name), first, max_new_tokens=NEW, sampling=RANDOM)
    assert [row.tolist() for row in once] == [row.tolist() for row in twice]
    again = jax.tree.map(np.array, first._replace(keys=jax.random.key_data(first.keys)))
    jax.tree.map(np.testing.assert_array_equal, again, kept)
    owned = jax.tree.map(jnp.copy, first)
    stops, done = np.zeros((3, 0), np.int32), jnp.zeros(3, bool)
    _decode_block(
        model(name),
        params(name),
        owned,
        done,
        stops,
        np.int32(2),
        choice=_Choice(RANDOM, 16, False),
    )
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(owned.state))


def test_what_does_not_fit_in_a_cache_is_said_before_anything_runs():
    """A row of n tokens and m new ones reads n + m - 1: the last one is not read."""
    hybrid, values = model("hybrid"), params("hybrid")
    row = np.zeros(ROOM - 3, np.int32)
    words = f"max_length: the cache of layer 1 holds {ROOM} tokens, wanted {ROOM + 1} for row 1"
    with pytest.raises(ValueError, match=words):
        generate(hybrid, None, [row[:1], row], max_new_tokens=5)
    found = generate(hybrid, values, [row[:1], row], max_new_tokens=4)
    assert [len(tokens) for tokens in found] == [4, 4]
    first = start(hybrid, values, [row], row_keys(0, 1))
    with pytest.raises(ValueError, match=words.replace("row 1", "row 0")):
        extend(hybrid, None, first, [[1, 2, 3]], max_new_tokens=2)
    with pytest.raises(ValueError, match=words.replace("row 1", "row 0")):
        decode(hybrid, None, first, max_new_tokens=5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": [[1], []]}, "prompts: row 1 is empty; wanted at least one token"),
        ({"prompts": []}, "prompts: found no row"),
        (
            {"prompts": [[1], [2, VOCAB]]},
            rf"prompts: found the id {VOCAB} in row 1.*\[0, {VOCAB}\)",
        ),
        ({"prompts": [[-1]]}, "prompts: found the id -1 in row 0"),
        ({"prompts": [[0.5]]}, "prompts: found .*float64 in row 0, wanted a list of token ids"),
        ({"prompts": [1, 2]}, r"prompts: found shape \(\) .* in row 0"),
        ({"max_new_tokens": 0}, "max_new_tokens: found 0, wanted a whole number >= 1"),
        ({"stop_tokens": [VOCAB]}, f"stop_tokens: found the id {VOCAB}"),
        ({"stop_tokens": [[1], [2], [3]]}, "stop_tokens: found 3 rows, wanted 1"),
        ({"sampling": Sampling(vocab_size=VOCAB + 1)}, f"vocab_size: found {VOCAB + 1} ids"),
        ({"keys": row_keys(0, 2)}, r"keys: found shape \(2,\), wanted a key for each of 1 rows"),
    ],
)
def test_values_that_do_not_fit(changes, words):
    """None for the parameters: it is said before they are used."""
    values = {"prompts": [[1, 2]], "max_new_tokens": 3} | changes
    with pytest.raises(ValueError, match=words):
        generate(model(), None, **values)


def test_logits_that_are_not_finite_are_said():
    broken = jax.tree.map(lambda leaf: leaf, params())
    broken["head"] = {"table": broken["head"]["table"].at[4].set(np.nan)}
    with pytest.raises(ValueError, match="logits: found NaN or infinity in row 0"):
        generate(model(), broken, PROMPTS, max_new_tokens=3)


def test_tokens_beyond_the_tokenizer_are_never_drawn():
    values = jax.tree.map(lambda leaf: leaf, params())
    values["head"] = {"table": values["head"]["table"].at[7:].multiply(100.0)}
    free = generate(model(), values, PROMPTS, max_new_tokens=NEW)
    assert max(row.max() for row in free) >= 7
    for sampling in (Sampling(0.0, vocab_size=7), Sampling(vocab_size=7, top_p=0.9)):
        found = generate(model(), values, PROMPTS, max_new_tokens=NEW, sampling=sampling)
        assert max(row.max() for row in found) < 7
