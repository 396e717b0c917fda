"""What modules and optimizers can do gives the same bits when every page leaves after every operation.

As in `test_features.py`: a feature is a function without arguments that returns what must be equal.
"""

import copy
import io
import pickle
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, rnn
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads
from torch.optim import lr_scheduler, swa_utils
from torch.utils import checkpoint

from tests.cpu.test_features import Feature, cases, check, entering, everything_leaves, leaf, reference, with_gradients

FEATURES: dict[str, Feature] = {}
feature = entering(FEATURES)

CHANGED_BY_ANY_MODE: set[str] = set()
"""They equal an empty dispatch mode, not a plain run (N22)."""

BROKEN: set[str] = {
    "scripts_that_print",  # str() makes a tensor of its own and reads it without an operation
}
"""They show a bug that is not repaired yet."""

BROKEN_CRASH: list[str] = []
"""The same, but the process dies of it: not run at all."""


def mlp() -> nn.Sequential:
    """A small model whose weights are pages."""
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 32))


def train(model: nn.Module, updates: torch.optim.Optimizer, steps: int = 2, shape: tuple[int, ...] = (16, 32)) -> Any:
    """Some steps. Returns what must be equal afterwards."""
    losses = []
    for _ in range(steps):
        updates.zero_grad()
        loss = model(torch.randn(shape)).square().mean()
        loss.backward()
        updates.step()
        losses.append(loss)
    return losses, state_of(model), updates.state_dict()["state"]


def state_of(model: nn.Module) -> Any:
    """Its parameters, buffers and gradients."""
    return dict(model.state_dict()), [p.grad for p in model.parameters()]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """For ``model``."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """For ``model``."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def through_a_file(value: Any, **options: Any) -> Any:
    """Saved and loaded, with nothing in memory that can leave."""
    everything_leaves()
    torch.save(value, file := io.BytesIO())
    everything_leaves()
    file.seek(0)
    return torch.load(file, **options)


# -- states, files and copies ------------------------------------------------------------------------------------------


@feature
def state_dicts() -> Any:
    first, second, third = mlp(), mlp(), mlp()
    updates = adam(first)
    train(first, updates)
    everything_leaves()
    second.load_state_dict(first.state_dict())
    third.load_state_dict(copy.deepcopy(first.state_dict()), strict=True, assign=True)
    lacking = mlp().load_state_dict({k: v for k, v in first.state_dict().items() if "3" not in k}, strict=False)
    others = adam(third)
    others.load_state_dict(updates.state_dict())
    return train(first, updates), train(second, adam(second)), train(third, others), lacking.missing_keys


@feature
def without_memory_at_first() -> Any:
    with torch.device("meta"):
        empty, assigned = mlp(), mlp()
    empty.to_empty(device="cpu")
    everything_leaves()
    empty.load_state_dict(mlp().state_dict())
    assigned.load_state_dict(mlp().state_dict(), assign=True)
    skipped = nn.utils.skip_init(nn.Linear, 32, 32)
    everything_leaves()
    nn.init.orthogonal_(skipped.weight)
    nn.init.kaiming_uniform_(empty[0].weight)
    return train(empty, sgd(empty)), train(assigned, sgd(assigned)), skipped.weight


@feature
def files_of_models_and_optimizers() -> Any:
    model = mlp()
    updates = adam(model)
    train(model, updates)
    states = through_a_file({"model": model.state_dict(), "updates": updates.state_dict()})
    whole, legacy = through_a_file((model, updates), weights_only=False), through_a_file(model, weights_only=False)
    model.load_state_dict(states["model"])
    updates.load_state_dict(states["updates"])
    return train(model, updates), train(*whole), state_of(legacy)


@feature
def files_that_are_mapped() -> Any:
    model, mapped = mlp(), mlp()
    everything_leaves()
    with NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file.name)
        mapped.load_state_dict(torch.load(file.name, mmap=True), assign=True)
        return train(mapped, adam(mapped))


@feature
def copies_in_the_middle_of_training() -> Any:
    model = mlp()
    updates = adam(model)
    train(model, updates)
    everything_leaves()
    both = copy.deepcopy((model, updates))
    pickled = pickle.loads(pickle.dumps((model, updates)))
    everything_leaves()
    return train(model, updates), train(*both), train(*pickled)


@feature
def averages_of_weights() -> Any:
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 32))
    updates = sgd(model)
    ema = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    swa, schedule = swa_utils.AveragedModel(model), swa_utils.SWALR(updates, swa_lr=0.05, anneal_epochs=2)
    for _ in range(3):
        train(model, updates, 1)
        ema.update_parameters(model)
        swa.update_parameters(model)
        schedule.step()
        everything_leaves()
    swa_utils.update_bn([torch.randn(16, 32) for _ in range(3)], swa)
    return state_of(model), state_of(ema), state_of(swa), updates.param_groups[0]["lr"], swa(torch.ones(16, 32))


# -- what happens to modules -------------------------------------------------------------------------------------------


@feature
def hooks_of_modules() -> Any:
    model, seen = mlp(), []

    def forward(module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().clone())
        return output + 1

    def backward(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        seen.append(inputs[0].clone())
        return (inputs[0] * 0.5,)

    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[0].register_forward_hook(forward, with_kwargs=True)
    model[3].register_full_backward_pre_hook(lambda module, outputs: (outputs[0] * 3,))
    model[3].register_full_backward_hook(backward)
    model.register_state_dict_post_hook(lambda module, state, prefix, _: state.update(extra=state["0.weight"] * 2))
    model.register_load_state_dict_pre_hook(lambda module, state, *_: state.pop("extra").add_(1))
    model.register_load_state_dict_post_hook(lambda module, keys: seen.append(module[0].weight.data.mul_(2).clone()))
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 1.5)
    try:
        trained = train(model, sgd(model))
    finally:
        everywhere.remove()
    everything_leaves()
    model.load_state_dict(model.state_dict())
    return trained, state_of(model), seen


@feature
def optimizer_in_backward() -> Any:
    model = mlp()
    updates = {p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        updates[parameter].step()
        updates[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        model(torch.randn(16, 32)).square().mean().backward()
        everything_leaves()
    return state_of(model), [each.state_dict()["state"] for each in updates.values()]


@feature
def hooks_of_optimizers() -> Any:
    model, seen = mlp(), []
    updates = adam(model)
    updates.register_step_pre_hook(lambda *_: [p.grad.mul_(2) for p in model.parameters()] and None)
    updates.register_step_post_hook(lambda *_: seen.append(model[0].weight.detach().clone()))
    updates.register_state_dict_post_hook(lambda _, state: {**state, "state": {0: state["state"][0]["exp_avg"] * 2}})
    return train(model, updates), seen


@feature
def frozen_and_tied_weights() -> Any:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32))
    model[2].weight = model[0].weight
    updates, results = adam(model), []
    for frozen in (0, 1, None):
        for number, layer in enumerate(model):
            layer.requires_grad_(number != frozen)
        results.append(train(model, updates))
        everything_leaves()
    updates.add_param_group({"params": [nn.Parameter(torch.randn(32, 32))]})
    return results, through_a_file(model, weights_only=False)[2].weight


@feature
def conversions() -> Any:
    image, model = torch.randn(2, 8, 8, 8), nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1))
    updates, results = sgd(model), []
    for change in ({"dtype": torch.float64}, {"memory_format": torch.channels_last}, {"dtype": torch.bfloat16}):
        model.to(**change)
        everything_leaves()
        y = model(image.to(next(model.parameters()).dtype).contiguous(memory_format=torch.channels_last))
        updates.zero_grad()
        y.square().mean().backward()
        updates.step()
        results.append((y, copy.deepcopy(model.state_dict())))
    return results, model.half().state_dict(), model.type(torch.float32)(image), updates.state_dict()["state"]


@feature
def conversions_by_swapping() -> Any:
    model, before = mlp(), torch.__future__.get_swap_module_params_on_conversion()
    weight, results = model[0].weight, []
    updates = sgd(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        results.append(train(model, updates))
        model.zero_grad()
        everything_leaves()
        model.double()
        results.append(weight is model[0].weight and weight.dtype == torch.float64)
        model.load_state_dict(mlp().state_dict())
        everything_leaves()
        model.float()
        updates = sgd(model)
        return results, train(model, updates)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


class _Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu()


@feature
def parametrized_weights() -> Any:
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    parametrize.register_parametrization(model[0], "weight", _Symmetric())
    parametrizations.weight_norm(model[1])
    parametrizations.spectral_norm(model[2])
    parametrizations.orthogonal(model[3])
    trained = train(model, sgd(model))
    model[0].weight = torch.randn(32, 32)
    everything_leaves()
    with parametrize.cached():
        again = train(model, adam(model), 1)
    for layer in model:
        parametrize.remove_parametrizations(layer, "weight")
    return trained, again, state_of(model)


@feature
def older_norms_of_weights() -> Any:
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(32, 32)), nn.utils.spectral_norm(nn.Linear(32, 32)))
    trained = train(model, sgd(model))
    everything_leaves()
    nn.utils.remove_weight_norm(model[0])
    nn.utils.remove_spectral_norm(model[1])
    return trained, state_of(model)


@feature
def pruned_weights() -> Any:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.3)
    prune.ln_structured(model[3], "weight", amount=0.25, n=2, dim=0)
    trained = train(model, sgd(model))
    everything_leaves()
    prune.global_unstructured([(model[0], "weight"), (model[3], "weight")], prune.L1Unstructured, amount=200)
    prune.remove(model[0], "weight")
    everything_leaves()
    return trained, train(model, sgd(model)), prune.is_pruned(model)


@feature
def gradients_as_a_whole() -> Any:
    model, norms = mlp(), []
    for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
        model(torch.randn(16, 32)).square().sum().backward()
        everything_leaves()
        norms.append(clip(model.parameters(), 0.5))
        norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    vector = nn.utils.parameters_to_vector(model.parameters())
    everything_leaves()
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    model[0].weight.data[3] += 1
    return norms, vector, train(model, sgd(model))


@feature
def fused_convolutions() -> Any:
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16))
    image = torch.randn(4, 8, 12, 12)
    model(image)
    model.eval()
    everything_leaves()
    fused = nn.utils.fuse_conv_bn_eval(*model)
    everything_leaves()
    return model(image), fused(image), state_of(fused)


@feature
def lazy_modules() -> Any:
    model = nn.Sequential(nn.LazyConv2d(16, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(32))
    model(torch.randn(4, 8, 8, 8))
    everything_leaves()
    again = nn.Sequential(nn.LazyLinear(64), nn.LazyLinear(32))
    again.load_state_dict(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 32)).state_dict())
    return train(model, adam(model), shape=(4, 8, 8, 8)), train(again, adam(again))


# -- recurrent layers, embeddings, attention ---------------------------------------------------------------------------


@feature
def packed_sequences() -> Any:
    sequences = [leaf(n, 64) for n in (9, 8, 12)]
    model = nn.LSTM(64, 32, bidirectional=True)
    packed = rnn.pack_sequence(sequences, enforce_sorted=False)
    everything_leaves()
    output, (hidden, cell) = model(packed)
    padded, lengths = rnn.pad_packed_sequence(output, batch_first=True)
    again = rnn.pack_padded_sequence(padded * 2, lengths, batch_first=True, enforce_sorted=False)
    everything_leaves()
    loss = nn.GRU(64, 32)(again)[0].data.square().sum() + hidden.sum() + rnn.unpack_sequence(output)[1].sum()
    return with_gradients(loss, *sequences), padded, cell, state_of(model)


@feature
def long_sequences() -> Any:
    """So long that the batch sizes of a packed sequence are a page."""
    packed = rnn.pack_sequence([torch.randn(n, 4) for n in (9000, 20, 3)])
    everything_leaves()
    return rnn.pad_packed_sequence(packed), packed.batch_sizes


@feature
def batch_sizes_from_a_table() -> Any:
    table, model = torch.cat([torch.full((4,), 5), torch.zeros(20000, dtype=torch.int64)]), nn.LSTM(32, 32)
    everything_leaves()
    output, _ = model(rnn.PackedSequence(torch.randn(20, 32), table[:4]))
    return with_gradients(output.data, *model.parameters())


@feature
def embeddings() -> Any:
    table, bags = nn.Embedding(64, 32, sparse=True, padding_idx=3), nn.EmbeddingBag(64, 32, mode="mean", sparse=True)
    updates = torch.optim.SparseAdam([table.weight, bags.weight], lr=0.01)
    for _ in range(3):
        updates.zero_grad()
        words = torch.randint(64, (20000,))
        everything_leaves()
        (table(words[:256]).sum(0) * bags(words[:256].view(32, 8))).square().sum().backward()
        updates.step()
    norm = F.embedding(words[:64], table.weight.detach().clone(), max_norm=1.0)
    return table.weight, bags.weight, table.weight.grad, bags.weight.grad, updates.state_dict()["state"], norm


@feature
def fast_paths_of_attention() -> Any:
    attention = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x = torch.randn(4, 16, 32)
    everything_leaves()
    with torch.no_grad():
        results = [attention(x, x, x, need_weights=need) for need in (True, False)]
        results += [encoder(x), encoder(x, mask=torch.zeros(16, 16))]
    with torch.inference_mode():
        return results, encoder(x).clone(), nn.Transformer(32, 4, 1, 1, 64, batch_first=True).eval()(x, x).clone()


@feature
def padded_batches() -> Any:
    """The encoder makes a nested tensor of them."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x, padding = torch.randn(4, 16, 32), torch.arange(16).expand(4, 16) >= torch.tensor([[16], [9], [12], [5]])
    everything_leaves()
    with torch.no_grad():
        return encoder(x, src_key_padding_mask=padding)


@feature
def inference_of_packed_sequences() -> Any:
    sequences, models = [torch.randn(n, 32) for n in (20, 15)], [kind(32, 32) for kind in (nn.LSTM, nn.GRU, nn.RNN)]
    with torch.inference_mode():
        packed = rnn.pack_sequence(sequences)
        everything_leaves()
        return [model(packed)[0].data.clone() for model in models]


@feature
def inference_tensors() -> Any:
    model = mlp()
    with torch.inference_mode():
        x = torch.randn(16, 32)
        everything_leaves()
        y = model(x).add_(1)
        y[3:5] *= 2
    everything_leaves()
    return y.clone(), (y * 2), model(y.clone()), y.is_inference()


@feature
def gradients_of_each_sample() -> Any:
    model = mlp()
    everything_leaves()
    call_for_per_sample_grads(model, batch_size=16)(torch.randn(16, 32)).square().sum().backward()
    return [p.grad_sample for p in model.parameters()]


# -- optimizers --------------------------------------------------------------------------------------------------------


@feature
def optimizers_of_every_kind() -> Any:
    results = []
    for kind in ("Adadelta", "Adagrad", "Adafactor", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"):
        model = mlp()
        results.append(train(model, getattr(torch.optim, kind)(model.parameters())))
    matrices = nn.Sequential(nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False))
    results.append(train(matrices, torch.optim.Muon(matrices.parameters(), lr=0.01)))
    return results, train(matrices, torch.optim.AdamW(matrices.parameters(), amsgrad=True, lr=torch.tensor(0.01)))


@feature
def steps_with_a_closure() -> Any:
    model, x = mlp(), torch.randn(16, 32)
    updates = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe", history_size=3)

    def closure() -> torch.Tensor:
        updates.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        everything_leaves()
        return loss

    return [updates.step(closure) for _ in range(3)], state_of(model), updates.state_dict()["state"]


@feature
def schedules() -> Any:
    results = []
    for make in (
        lambda updates: lr_scheduler.OneCycleLR(updates, 0.2, total_steps=8),
        lambda updates: lr_scheduler.CosineAnnealingWarmRestarts(updates, 2),
        lambda updates: lr_scheduler.SequentialLR(
            updates, [lr_scheduler.LinearLR(updates, 0.1, 1, 2), lr_scheduler.ExponentialLR(updates, 0.9)], [2]
        ),
    ):
        model = mlp()
        updates = sgd(model)
        schedule = make(updates)
        for _ in range(4):
            trained = train(model, updates, 1)
            schedule.step()
        loaded = make(sgd(model))
        loaded.load_state_dict(through_a_file(schedule.state_dict(), weights_only=False))
        results.append((trained, schedule.get_last_lr(), loaded.get_last_lr()))
    plateau = lr_scheduler.ReduceLROnPlateau(updates, patience=0)
    for _ in range(3):
        plateau.step(model(torch.ones(16, 32)).sum().abs() * 0 + 1)
    return results, updates.param_groups[0]["lr"]


# -- checkpointing, tracing, compiling ---------------------------------------------------------------------------------


@feature
def checkpoints_with_a_policy() -> Any:
    model, x = mlp(), leaf(16, 32)
    kept = [torch.ops.aten.addmm.default]

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> checkpoint.CheckpointPolicy:
        must = checkpoint.CheckpointPolicy
        return must.MUST_SAVE if op in kept else must.PREFER_RECOMPUTE

    results = []
    for chosen in (policy, kept):
        y = checkpoint.checkpoint(
            lambda t: F.dropout(model(t), 0.3),
            x,
            use_reentrant=False,
            context_fn=lambda chosen=chosen: checkpoint.create_selective_checkpoint_contexts(chosen),
        )
        everything_leaves()
        results.append(with_gradients(y, x, *model.parameters()))
    sequence = checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False)
    return results, with_gradients(sequence, x)


@feature
def traced_and_scripted() -> Any:
    model, x = mlp().eval(), torch.randn(16, 32)
    everything_leaves()
    traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
    everything_leaves()
    with torch.no_grad():
        frozen = torch.jit.freeze(scripted)
        quick = torch.jit.optimize_for_inference(torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval()))
        image = torch.randn(2, 8, 8, 8)
        everything_leaves()
        runs = [(traced(x), scripted(x), frozen(x), quick(image)) for _ in range(3)]
    return runs, train(scripted, sgd(scripted)), copy.deepcopy(scripted)(x), traced.state_dict()


@feature
def files_of_scripted_modules() -> Any:
    model, x = torch.jit.script(mlp()), torch.randn(16, 32)
    everything_leaves()
    torch.jit.save(model, file := io.BytesIO())
    file.seek(0)
    loaded = torch.jit.load(file)
    everything_leaves()
    return loaded(x), dict(loaded.state_dict()), train(loaded, sgd(loaded))


def _forked(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    futures = [torch.jit.fork(torch.matmul, x, w) for _ in range(4)]
    total = torch.zeros_like(x)
    for future in futures:
        total += torch.jit.wait(future)
    return total.tanh()


@feature
def scripts_in_parallel() -> Any:
    x, w = torch.randn(32, 32), torch.randn(32, 32)
    everything_leaves()
    return torch.jit.script(_forked)(x, w), x + w


@feature
def files_of_traced_modules() -> Any:
    x = torch.randn(16, 32)
    model = torch.jit.trace(mlp(), x)
    everything_leaves()
    torch.jit.save(model, file := io.BytesIO())
    file.seek(0)
    return torch.jit.load(file).state_dict(), model(x)


class _WithTable(nn.Module):
    """Its table is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


@feature
def files_of_other_scripts() -> Any:
    table, x = torch.randn(1024), torch.randn(1024)
    frozen = torch.jit.freeze(torch.jit.script(_WithTable().eval()))
    results = []
    for script in (torch.jit.script(_WithTable()), torch.jit.trace(lambda t: t * table, x), frozen):
        everything_leaves()
        torch.jit.save(script, file := io.BytesIO())
        file.seek(0)
        results.append((script(x), torch.jit.load(file)(x)))
    return results


def _numbers(x: torch.Tensor) -> tuple[list[float], float]:
    numbers: list[float] = x.tolist()
    return numbers, float(x[3])


def _text(x: torch.Tensor) -> str:
    return str(x)


@feature
def scripts_that_read_numbers() -> Any:
    x = torch.randn(1024)
    everything_leaves()
    return torch.jit.script(_numbers)(x), x


@feature
def scripts_that_make_tensors() -> Any:
    def made(x: torch.Tensor, number: float) -> torch.Tensor:  # here, so that it is compiled each time
        return x * torch.tensor([number]) + torch.as_tensor([number])

    x = torch.randn(1024)
    everything_leaves()
    return torch.jit.script(made)(x, 0.5)


class _Wrapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32))

    def forward(self, call: torch.Tensor, module: torch.Tensor, hooks: torch.Tensor) -> torch.Tensor:
        return call @ self.weight + module * hooks


@feature
def arguments_that_have_names_of_ours() -> Any:
    model, x = _Wrapping(), torch.randn(16, 32)
    everything_leaves()
    return with_gradients(model(call=x, module=x * 2, hooks=x * 3), *model.parameters())


@feature
def scripts_that_print() -> Any:
    x = torch.randn(1024)
    everything_leaves()
    return torch.jit.script(_text)(x), x


@feature
def symbolic_graphs() -> Any:
    model, x = mlp(), torch.randn(16, 32)
    everything_leaves()
    symbolic, real = torch.fx.symbolic_trace(model), make_fx(lambda t: model(t) * 2)(x)
    everything_leaves()
    results = symbolic(x), real(x), torch.fx.Interpreter(symbolic).run(x), torch.compile(model, backend="eager")(x)
    return results, train(symbolic, sgd(symbolic))


@feature
def fake_tensors() -> Any:
    x = torch.randn(32, 32)
    everything_leaves()
    with FakeTensorMode() as mode:
        shape = torch.mm(mode.from_tensor(x), torch.empty(32, 64)).shape
    return x, list(shape), make_fx(lambda t: t.sin() @ t, tracing_mode="fake")(x)(x)


@feature
def exported_programs() -> Any:
    model, x = mlp(), torch.randn(16, 32)
    everything_leaves()
    exported = torch.export.export(model, (x,))
    everything_leaves()
    torch.export.save(exported, file := io.BytesIO())
    module = exported.module()
    file.seek(0)
    loaded = torch.export.load(file).module()
    return module(x), train(module, sgd(module)), loaded(x), dict(loaded.state_dict())


@feature
def compiled_to_run_eagerly() -> Any:
    model, x = mlp(), leaf(16, 32)
    everything_leaves()
    return with_gradients(torch.compile(model, backend="aot_eager")(x), x, *model.parameters())


@feature
def compiled_to_write_its_argument() -> Any:
    """Which came back with a copy below: that is worth nothing from then on."""
    x = torch.randn(64, 64)
    everything_leaves()
    results = [x.sum()]
    results.append(torch.compile(lambda t: t.mul_(2).sum(), backend="inductor")(x))
    everything_leaves()
    return [*results, x + 1]


# -- quantized modules -------------------------------------------------------------------------------------------------


_HAS_ENGINE = "x86" in torch.backends.quantized.supported_engines


def _quantized(dtype: torch.dtype) -> Any:
    if not _HAS_ENGINE:
        pytest.skip("this build has no engine for quantized numbers")
    model = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 512)).eval()
    everything_leaves()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)
    everything_leaves()
    x = torch.randn(16, 32)
    return quantized(x), copy.deepcopy(quantized)(x), through_a_file(quantized, weights_only=False)(x)


@feature
def dynamically_quantized() -> Any:
    """The packed weights hold the bias, where no operation shows it."""
    return _quantized(torch.qint8)


@feature
def dynamically_halved() -> Any:
    return _quantized(torch.float16)


@feature
def statically_quantized() -> Any:
    q = torch.ao.quantization
    if not _HAS_ENGINE:
        pytest.skip("this build has no engine for quantized numbers")
    model = nn.Sequential(q.QuantStub(), nn.Conv2d(8, 256, 3), nn.ReLU(), q.DeQuantStub()).eval()
    model.qconfig = q.get_default_qconfig("x86")
    prepared = q.prepare(q.fuse_modules(model, [["1", "2"]]))
    image = torch.randn(4, 8, 8, 8)
    prepared(image)
    everything_leaves()
    converted = q.convert(prepared)
    everything_leaves()
    return converted(image), through_a_file(converted.state_dict(), weights_only=False)["1.weight"].int_repr()


@feature
def trained_for_quantizing() -> Any:
    q = torch.ao.quantization
    model = nn.Sequential(q.QuantStub(), nn.Linear(32, 64), q.DeQuantStub())
    model.qconfig = q.get_default_qat_qconfig("x86")
    prepared = q.prepare_qat(model)
    return train(prepared, sgd(prepared))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases(FEATURES, BROKEN, BROKEN_CRASH))
def test_equal_to_the_bit(name: str) -> None:
    check(FEATURES[name], reference(name in CHANGED_BY_ANY_MODE))
