"""The base of every experiment: each key once, with its meaning.

No experiment by itself: `configs/lm.py` and `configs/mqar.py` start from it and change some
values. Any key can also be changed on the command line: `--config.train.steps=100`.
"""

import ml_collections
from ml_collections import config_dict

MIXERS = (
    "bayesian",
    "deltanet",
    "gated_deltanet",
    "kda",
    "linear_attention",
    "retnet",
    "gla",
    "gsa",
    "mamba2",
    "attention",
    "ramnet",
)


def choose(variant: str, groups: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """Reads a variant such as "small,deltanet": at most one comma part of each group.

    In the group "mixer" several names may be joined by "+"; layers take them in turn.

    Args:
        variant: What follows the colon of `--config=configs/NAME.py:`, "" for the defaults.
        groups: Group to its names, the default first. No name is in two groups.

    Returns:
        Group to the part chosen, or to its default.

    Raises:
        ValueError: An unknown part or two of one group; lists what exists.
    """
    chosen: dict[str, str] = {}
    for part in variant.split(",") if variant else []:
        for group, names in groups.items():
            pieces = part.split("+") if group == "mixer" else [part]
            if group not in chosen and all(piece in names for piece in pieces):
                chosen[group] = part
                break
        else:
            exist = "; ".join(f"{group}: {', '.join(names)}" for group, names in groups.items())
            raise ValueError(
                f"variant: found {part!r} in {variant!r}, wanted at most one of each of {exist}"
            )
    return {group: chosen.get(group, names[0]) for group, names in groups.items()}


def base(data: ml_collections.ConfigDict, vocab_size: int) -> ml_collections.ConfigDict:
    """The base config around a `data` block, not locked yet.

    Args:
        data: `text_data()` or `mqar_data()`.
        vocab_size: Token ids of that data; an int, or a reference to a key of it.

    Returns:
        ConfigDict with seed, model, data, optimizer, train and mesh.
    """
    config = ml_collections.ConfigDict()
    config.seed = 0  # initial parameters and order of the examples

    config.model = model = ml_collections.ConfigDict()
    model.vocab_size = vocab_size  # token ids, inputs and outputs
    model.width = 128  # W of the residual stream
    model.num_layers = 2  # residual blocks: a mixer and an MLP each
    model.mixers = ("bayesian",)  # mixer of each block, repeated over the blocks in turn
    model.mixer_options = ml_collections.ConfigDict()  # mixer to its options; see `use_mixers`
    model.mlp_width = 256  # hidden width of the SwiGLU MLP
    # Longest row: size of attention's cache.
    model.max_length = data.get_ref("seq_len") if "seq_len" in data else 2048
    model.tie_embeddings = True  # one matrix for the embedding and the output head
    model.dtype = "float32"  # of activations: "float32" or "bfloat16"; states stay float32
    model.norm_eps = 1e-5  # epsilon of every RMSNorm of the residual stream
    model.remat = False  # recompute blocks in the backward pass: less memory, more time
    model.remat_saves = "nothing"  # of a block all the same: "nothing", "projections", "products"
    model.scan_layers = False  # compile one turn of the mixers, run it for all: for deep models
    model.vocab_multiple = 64  # embedding rows are padded to a multiple; logits are cut again

    config.data = data

    config.optimizer = optimizer = ml_collections.ConfigDict()
    optimizer.learning_rate = 2e-3  # peak
    optimizer.warmup_steps = 50  # linear warm-up from 0 to the peak
    optimizer.weight_decay = 0.1  # AdamW decay of matrices
    optimizer.beta1 = 0.9  # decay of the mean of gradients
    optimizer.beta2 = 0.95  # decay of the mean of their squares
    optimizer.clip_norm = 1.0  # largest global norm of a gradient; 0 for no clipping
    optimizer.end_fraction = 0.1  # learning rate of the last step, as a fraction of the peak
    optimizer.schedule = "cosine"  # after the warm-up: "cosine", "linear" or "constant"

    config.train = train = ml_collections.ConfigDict()
    train.steps = 300  # batches to train on
    train.batch_size = 16  # examples a step, over all devices and microbatches
    train.grad_accumulation = 1  # microbatches a step; divides batch_size
    train.loss_tokens = 0  # tokens of each row whose logits are held at once; 0: all
    train.z_loss = 0.0  # weight of the squared log normaliser in what is descended
    train.log_every = 10  # steps between two training rows of metrics.jsonl
    train.eval_every = 100  # steps between two evaluations on the valid split; 0: at the end
    train.eval_batches = 20  # batches of one such evaluation
    train.checkpoint_every = 100  # steps between two checkpoints; 0: at the end or on a signal
    train.keep_checkpoints = 3  # newest checkpoints kept of those a process wrote; 0: all
    train.wandb_project = ""  # Weights & Biases project; "": off

    config.mesh = mesh = ml_collections.ConfigDict()
    mesh.data = -1  # devices that split the batch, each with all parameters; -1: all that remain
    mesh.fsdp = 1  # devices that split the batch and the "embed" axis of the parameters
    mesh.tensor = 1  # devices that split heads, MLP and vocabulary
    mesh.sequence = 1  # devices that split time
    return config


def text_data() -> ml_collections.ConfigDict:
    """The `data` block of language modelling on text, by default as bytes.

    Returns:
        ConfigDict, not locked.
    """
    data = ml_collections.ConfigDict()
    data.task = "text"
    # File or folder (see bayesmem/data/documents.py), "hf:NAME" or what launch.prepare_data made;
    # "": Python's own sources.
    data.path = ""
    data.text_key = "text"  # key of the text in lines of .jsonl files, its column in tables
    data.tokenizer = "bytes"  # or the path of a tokenizer.json or a SentencePiece .model
    data.seq_len = 256  # tokens a row; documents are joined and cut to rows
    return data


def mqar_data() -> ml_collections.ConfigDict:
    """The `data` block of multi-query associative recall.

    Returns:
        ConfigDict, not locked.
    """
    data = ml_collections.ConfigDict()
    data.task = "mqar"
    data.variant = "base"  # "base"; "update": keys written again; "block": keys, then values
    data.seq_len = 64  # tokens a row, even
    data.num_pairs = 4  # keys a row, each queried once; base needs seq_len >= 4 num_pairs
    data.vocab_size = 256  # tokens of the one vocabulary of keys, values and filler
    data.power_a = 0.01  # exponent of the power law of the query gaps; 1: uniform
    data.passes = 1  # how many times the pairs are presented
    data.update_fraction = 0.5  # update only: fraction of keys written again
    data.block_size = config_dict.placeholder(int)  # block only: pairs a block; None: all
    data.values_may_be_keys = False  # whether a value may equal a key of its row
    data.train_examples = 100_000  # rows of the train split, repeated in another order
    data.valid_examples = 1_000  # rows of the valid split
    data.test_examples = 3_000  # rows of the test split
    data.seed = 0  # of the rows; apart from config.seed, so that every run is tested on the same
    return data


def sweep(
    config: ml_collections.ConfigDict, mixers: tuple[str, ...], together: int = 12
) -> ml_collections.ConfigDict:
    """Makes the config of a sweep of a base config, not locked yet.

    Args:
        config: The base, changed in place. The runs' learning rates, seeds, widths and mixers are
            those of `sweep`, so the keys for one run are taken out.
        mixers: Names of mixers, each with its options in `model.mixer_options`.
        together: The most runs that are trained at once.

    Returns:
        The config.
    """
    config.sweep = grid = ml_collections.ConfigDict()
    grid.mixers = mixers  # names; "gla/NAME" is a second "gla" with options of its own
    grid.widths = (config.model.width,)  # of the residual stream
    grid.learning_rates = (config.optimizer.learning_rate,)  # peaks
    grid.seeds = (0, 1, 2)  # of initial parameters and of the order of examples
    grid.together = together  # most runs of one mixer and width that are trained at once
    config.tests = ml_collections.ConfigDict()  # test to the keys of `data` that differ in it
    # Nothing reads these in a sweep: each run has its own, or none.
    del config.seed, config.optimizer.learning_rate, config.mesh
    for name in ("width", "mixers", "max_length"):
        del config.model[name]
    for name in (
        "eval_every",
        "eval_batches",
        "grad_accumulation",
        "loss_tokens",
        "wandb_project",
        "z_loss",
    ):
        del config.train[name]
    if "valid_examples" in config.data:
        del config.data.valid_examples
    return config


def use_mixers(config: ml_collections.ConfigDict, mixer: str, num_heads: int) -> None:
    """Sets the mixers of a config, and that many heads for each of them.

    Args:
        config: The config, changed in place.
        mixer: One name of `MIXERS`, or several joined by "+" for a hybrid.
        num_heads: Heads a layer; the width must be a multiple.
    """
    config.model.mixers = tuple(mixer.split("+"))
    for name in config.model.mixers:
        config.model.mixer_options[name] = {"num_heads": num_heads}
