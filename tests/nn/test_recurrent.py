"""Cells, RNN, LSTM and GRU against torch's modules with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, random, tree

RNG = np.random.default_rng(0)
CELLS = [
    (nn.RNNCell(3, 4), torch.nn.RNNCell(3, 4)),
    (nn.RNNCell(3, 4, nonlinearity="relu"), torch.nn.RNNCell(3, 4, nonlinearity="relu")),
    (nn.RNNCell(3, 4, bias=False), torch.nn.RNNCell(3, 4, bias=False)),
    (nn.LSTMCell(3, 4), torch.nn.LSTMCell(3, 4)),
    (nn.LSTMCell(3, 4, bias=False), torch.nn.LSTMCell(3, 4, bias=False)),
    (nn.GRUCell(3, 4), torch.nn.GRUCell(3, 4)),
    (nn.GRUCell(3, 4, bias=False), torch.nn.GRUCell(3, 4, bias=False)),
]
STACKS = [dict(), dict(bias=False), dict(layers=2), dict(layers=3, bidirectional=True)]


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape).astype(np.float32))


def tensor(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(x))


def near(got: Any, want: Any, rtol: float = 2e-4) -> None:
    want = want.detach().numpy() if isinstance(want, torch.Tensor) else want
    np.testing.assert_allclose(got, want, rtol=rtol, atol=2e-5)


def load(module: Any, params: Any) -> None:
    """Copy the parameters of a cell, or of a list of layers, into a torch module."""
    layers = params if isinstance(params, list) else [params]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            for name, x in layer.items():
                getattr(module, torch_name(name, i, isinstance(params, list))).copy_(tensor(x))


def torch_name(name: str, layer: int, numbered: bool = True) -> str:
    head, reverse, _ = name.partition("_reverse")
    return f"{head}_l{layer}{reverse}" if numbered else name


def gradients(module: Any, params: Any) -> Any:
    """The gradients of a torch module's parameters, in the structure of `params`."""
    if isinstance(params, dict):
        return {name: getattr(module, name).grad.numpy() for name in params}
    return [
        {name: getattr(module, torch_name(name, i)).grad.numpy() for name in layer}
        for i, layer in enumerate(params)
    ]


def carried(state: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """A state as torch has it: [layers * directions, batch, features] of the hidden and the cell's
    part, or of the hidden part alone."""
    layers = state if isinstance(state, list) else [state]
    suffixes = ["", "_reverse"] if "hidden_reverse" in layers[0] else [""]
    parts = [
        torch.stack([tensor(s[part + suffix]) for s in layers for suffix in suffixes])
        for part in ("hidden", "cell")
        if part in layers[0]
    ]
    return parts[0] if len(parts) == 1 else tuple(parts)


def drawn(state: Any) -> Any:
    return tree.map(lambda x: array(*x.shape), state)


def weighted(values: Any, weights: Any) -> Any:
    return sum((v * w).sum() for v, w in zip(values, weights, strict=True))


@pytest.mark.parametrize("cell, module", CELLS)
def test_cells(cell: Any, module: Any) -> None:
    params, x, state = cell.init(random.key(0)), array(2, 3), drawn(cell.init_state(batch=2))
    load(module, params)
    weights = [array(2, 4), *[array(2, 4) for _ in state]]

    def loss(params: Any, x: Any, state: Any) -> Any:
        y, new = cell(params, x, state=state)
        return weighted([y, *[new[k] for k in state]], weights)

    y, new = gf.jit(lambda p, x, s: cell(p, x, state=s))(params, x, state)
    dp, dx, ds = gf.grad(loss, (0, 1, 2))(params, x, state)

    t = tensor(x).requires_grad_()
    ts = {k: tensor(v).requires_grad_() for k, v in state.items()}
    parts = [ts["hidden"], ts["cell"]] if "cell" in ts else [ts["hidden"]]
    result = module(t, tuple(parts) if len(parts) > 1 else parts[0])
    theirs = dict(zip(("hidden", "cell"), result if isinstance(result, tuple) else (result,)))
    near(y, theirs["hidden"])
    for name in state:
        near(new[name], theirs[name])
    weighted([theirs["hidden"], *[theirs[k] for k in state]], map(tensor, weights)).backward()
    near(dx, t.grad)
    tree.map(near, dp, gradients(module, params))
    for name in state:
        near(ds[name], ts[name].grad)
    zero = module(tensor(x))
    near(cell(params, x), zero[0] if isinstance(zero, tuple) else zero)


@pytest.mark.parametrize("options", STACKS, ids=str)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
def test_layers(kind: str, options: dict[str, Any], ragged: bool) -> None:
    layer = getattr(nn, kind)(3, 4, **options)
    same = {{"layers": "num_layers"}.get(k, k): v for k, v in options.items()}
    module = getattr(torch.nn, kind)(3, 4, batch_first=True, **same)
    params, x, state = layer.init(random.key(0)), array(3, 5, 3), drawn(layer.init_state(batch=3))
    load(module, params)
    lengths = np.array([5, 2, 4]) if ragged else None
    if ragged:  # what stands behind a row's end reaches neither values nor gradients
        x = jnp.where(jnp.arange(5)[None, :, None] < lengths[:, None, None], x, jnp.nan)
    call = lambda p, x, s: layer(p, x, state=s, lengths=lengths)
    y, new = gf.jit(call)(params, x, state)
    weights = [array(*y.shape), *[array(*v.shape) for v in tree.leaves(new)]]

    def loss(params: Any, x: Any, state: Any) -> Any:
        y, new = call(params, x, state)
        return weighted([y, *tree.leaves(new)], weights)

    dp, dx, ds = gf.jit(gf.grad(loss, (0, 1, 2)))(params, x, state)

    t = torch.nan_to_num(tensor(x)).requires_grad_()
    given = carried(state)
    for part in given if isinstance(given, tuple) else (given,):
        part.requires_grad_()
    packed: Any = t
    if ragged:
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            t, torch.from_numpy(lengths), batch_first=True, enforce_sorted=False
        )
    want, last = module(packed, given)
    if ragged:
        want = torch.nn.utils.rnn.pad_packed_sequence(want, batch_first=True)[0]
    near(y, want)
    tree.map(near, carried(new), last)
    total = (want * tensor(weights[0])).sum()
    structured = carried(tree.unflatten(tree.structure(new), weights[1:]))
    pairs = zip(last, structured) if isinstance(last, tuple) else [(last, structured)]
    total = total + sum((a * b).sum() for a, b in pairs)
    total.backward()
    near(dx, t.grad)
    tree.map(near, dp, gradients(module, params))
    slopes = tuple(p.grad for p in given) if isinstance(given, tuple) else given.grad
    tree.map(near, carried(ds), slopes)


def test_layers_begin_with_zeros_without_a_state() -> None:
    for layer, module in [
        (nn.LSTM(3, 4, layers=2, bidirectional=True), torch.nn.LSTM),
        (nn.GRU(3, 4, layers=2, bidirectional=True), torch.nn.GRU),
    ]:
        params, x = layer.init(random.key(1)), array(2, 5, 3)
        peer = module(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        load(peer, params)
        near(layer(params, x), peer(tensor(x))[0])
        near(layer(params, x), layer(params, x, state=layer.init_state(batch=2))[0])
        # Without a batch axis, and with several.
        near(layer(params, x[0]), peer(tensor(x[0]))[0])
        near(layer(params, x[0], state=layer.init_state(batch=()))[0], peer(tensor(x[0]))[0])
        y, state = layer(params, x[None], state=layer.init_state(batch=(1, 2)), lengths=[[5, 5]])
        near(y[0], peer(tensor(x))[0])
        assert state[0]["hidden_reverse"].shape == (1, 2, 4)


def test_fresh_parameters() -> None:
    params = nn.LSTM(6, 50, layers=2, bidirectional=True).init(random.key(0))
    peer = torch.nn.LSTM(6, 50, num_layers=2, bidirectional=True)
    ours = {torch_name(n, i): x for i, layer in enumerate(params) for n, x in layer.items()}
    assert {n: tuple(x.shape) for n, x in peer.named_parameters()} == tree.map(jnp.shape, ours)
    limit = 1 / np.sqrt(50)
    for x in ours.values():
        assert np.abs(np.asarray(x)).max() <= limit
        assert abs(np.asarray(x).std() / (limit / np.sqrt(3)) - 1) < 0.15
    assert len({float(x.ravel()[0]) for x in ours.values()}) == len(ours), "drawn from one key"


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("reverse", [False, True])
def test_rnn_is_its_cell_step_by_step(kind: str, reverse: bool) -> None:
    cell = getattr(nn, kind)(3, 4)
    layer = nn.RNN(cell, reverse=reverse)
    params, x, lengths = layer.init(random.key(0)), array(3, 4, 3), [4, 0, 2]
    start = state = drawn(cell.init_state(batch=3))
    rows: list[Any] = [None] * 4
    for t in reversed(range(4)) if reverse else range(4):
        y, new = cell(params, x[:, t], state=state)
        inside = (t < np.array(lengths))[:, None]
        state = tree.map(lambda n, o: jnp.where(inside, n, o), new, state)
        rows[t] = jnp.where(inside, y, 0)
    y, last = layer(params, x, state=start, lengths=lengths)
    near(y, np.stack(rows, 1))
    tree.map(near, last, state)
    np.testing.assert_array_equal(y[1], 0)
    # A cell of another kind, here one in a container, is called step by step.
    other = nn.RNN(nn.Sequential(cell), reverse=reverse)
    y, last = other([params], x, state=[start], lengths=lengths)
    near(y, np.stack(rows, 1))
    tree.map(near, last, [state])
    zero = nn.RNN(cell, reverse=reverse)(params, x)
    near(other([params], x), zero)
    near(gf.vmap(lambda x: other([params], x))(x), zero)


def test_a_cell_in_a_container_draws_anew_at_every_step() -> None:
    layer = nn.RNN(nn.Sequential(nn.Dropout(0.5), nn.RNNCell(1, 1, bias=False)))
    one = [{}, {"weight_ih": jnp.ones((1, 1)), "weight_hh": jnp.zeros((1, 1))}]
    x = jnp.ones((8, 50, 1))
    y = np.asarray(layer(one, x, key=random.key(0), train=True))[..., 0]
    np.testing.assert_allclose(np.unique(y), [0, np.tanh(2)], rtol=1e-5)
    assert 0.4 < (y == 0).mean() < 0.6 and len(np.unique(y, axis=1).T) > 10
    near(layer(one, x), np.full((8, 50, 1), np.tanh(1)))


def test_dropout_is_between_layers() -> None:
    layer = nn.LSTM(3, 4, layers=2, dropout=0.5)
    params, x = layer.init(random.key(0)), array(2, 5, 3)
    lower, upper = nn.LSTM(3, 4), nn.LSTM(4, 4)
    y = layer(params, x, key=random.key(1), train=True)
    between = lower(params[:1], x)
    found = [
        bool(jnp.allclose(y, upper(params[1:], dropped), atol=1e-6))
        for k in random.split(random.key(1), 2)
        for dropped in [nn.Dropout(0.5)({}, between, key=k, train=True)]
    ]
    assert any(found), "no dropout between the layers"
    near(layer(params, x, key=random.key(1)), upper(params[1:], between))
    assert not np.allclose(y, layer(params, x))
    assert not np.allclose(y, layer(params, x, key=random.key(2), train=True))


def test_states_go_through_containers() -> None:
    model = nn.Sequential(
        nn.Linear(3, 4),
        nn.Residual(nn.LSTM(4, 4, layers=2)),
        nn.Sequential(norm=nn.BatchNorm(4), rnn=nn.RNN(nn.GRUCell(4, 2))),
    )
    params, state, x = model.init(random.key(0)), model.init_state(batch=2), array(2, 6, 3)
    assert tree.structure(state[1]) == tree.structure(nn.LSTM(4, 4, layers=2).init_state(batch=2))
    whole, end = gf.jit(lambda p, x, s: model(p, x, state=s))(params, x, state)
    first, state = model(params, x[:, :2], state=state)
    second, state = model(params, x[:, 2:], state=state)
    near(jnp.concatenate([first, second], 1), whole)
    tree.map(near, state, end)
    named = nn.Sequential(up=nn.LSTM(3, 4), down=nn.GRU(4, 2))
    params = named.init(random.key(0))
    y, state = named(params, x, state=named.init_state(batch=2))
    near(named(params, x), y)
    assert list(state) == ["up", "down"] and state["up"][0]["cell"].shape == (2, 4)


def test_transforms() -> None:
    layer = nn.LSTM(3, 4, layers=2, bidirectional=True)
    params, x, lengths = layer.init(random.key(0)), array(2, 5, 3), jnp.array([5, 3])
    y = layer(params, x, lengths=lengths)
    near(gf.vmap(lambda x, n: layer(params, x, lengths=n))(x, lengths), y)
    members = gf.vmap(layer.init)(random.split(random.key(0), 3))
    many = gf.vmap(layer, (0, None))(members, x)
    near(many[1], layer(tree.map(lambda v: v[1], members), x))
    for cell in (nn.GRUCell(2, 2), nn.LSTMCell(2, 2)):
        small = nn.RNN(cell)
        own, v = small.init(random.key(0)), array(1, 3, 2)
        gf.test_util.check_grads(
            lambda p, x: small(p, x, lengths=jnp.array([2])), (own, v), order=2, rtol=0.02
        )
        slope = lambda x: gf.grad(lambda x: jnp.sum(small(own, x) ** 2))(x)
        direct = gf.jit(gf.grad(lambda x: jnp.sum(slope(x) ** 2)))(v)
        vjp = gf.vjp(slope, v)[1](2 * slope(v))[0]
        near(direct, vjp)


def test_dtypes() -> None:
    x = array(2, 5, 3)
    for layer in (
        nn.LSTM(3, 4, dtype=jnp.bfloat16),
        nn.GRU(3, 4, layers=2, bidirectional=True, dtype=jnp.bfloat16),
        nn.RNN(nn.RNNCell(3, 4, dtype=jnp.bfloat16)),
    ):
        params, state = layer.init(random.key(0)), layer.init_state(batch=2)
        y, new = layer(params, x.astype(jnp.bfloat16), state=state)
        assert y.dtype == jnp.bfloat16
        assert tree.map(gf.typeof, new) == tree.map(gf.typeof, state)
        wide = tree.map(lambda p: p.astype(jnp.float32), params)
        np.testing.assert_allclose(y.astype(jnp.float32), layer(wide, x), atol=0.02)
        # A float32 carry stays one, as does that of float32 parameters under autocast.
        kept = tree.map(lambda v: v.astype(jnp.float32), state)
        assert tree.map(gf.typeof, layer(params, x, state=kept)[1]) == tree.map(gf.typeof, kept)
        y, new = gf.amp.autocast(lambda p, x, s: layer(p, x, state=s))(wide, x, kept)
        assert tree.map(gf.typeof, new) == tree.map(gf.typeof, kept)
        np.testing.assert_allclose(y.astype(jnp.float32), layer(wide, x), atol=0.02)


def test_no_steps_and_no_rows() -> None:
    layer = nn.LSTM(3, 4)
    params, state = layer.init(random.key(0)), drawn(layer.init_state(batch=2))
    y, same = layer(params, jnp.zeros((2, 0, 3)), state=state)
    assert y.shape == (2, 0, 4)
    tree.map(near, same, state)
    assert layer(params, jnp.zeros((0, 5, 3))).shape == (0, 5, 4)


def refused(call: Any) -> str:
    with pytest.raises(gf.errors.ArgumentError) as error:
        call()
    assert len(str(error.value).splitlines()) <= 6
    return str(error.value)


def test_layers_are_refused_when_they_are_made() -> None:
    make: Any
    for make in (nn.RNNCell, nn.LSTMCell, nn.GRUCell, nn.LSTM, nn.GRU):
        assert "features_in is 3.0" in refused(lambda: make(3.0, 4))
        assert "features is -1" in refused(lambda: make(3, -1))
        assert "bias is" in refused(lambda: make(3, 4, bias=jnp.bfloat16))
        assert make(3, 4) == make(3, 4) and hash(make(3, 4)) != hash(make(3, 5))
    wrong: Any = nn.RNN
    assert "nonlinearity is 'gelu', but is 'tanh' or 'relu'" in refused(
        lambda: nn.RNNCell(3, 4, nonlinearity="gelu")  # pyright: ignore[reportArgumentType]
    )
    assert "layers is 0" in refused(lambda: nn.LSTM(3, 4, layers=0))
    assert "dropout=0.5 is between layers" in refused(lambda: nn.GRU(3, 4, dropout=0.5))
    assert "rate is 1.5" in refused(lambda: nn.GRU(3, 4, layers=2, dropout=1.5))
    assert "RNN takes a cell, got 3" in refused(lambda: wrong(3, 4))
    assert "nn.RNN(nn.LSTMCell" in refused(lambda: wrong(nn.LSTMCell))


def test_calls_are_refused() -> None:
    x = array(2, 5, 3)
    layer = nn.LSTM(3, 4, layers=2, bidirectional=True, dropout=0.1)
    params, state = layer.init(random.key(0)), layer.init_state(batch=2)
    assert "has to be [batch, time, 3]" in refused(lambda: layer(params, x[0, 0]))
    assert "has to be [..., 3]" in refused(lambda: layer(params, array(2, 5, 4)))
    assert "state = layer.init_state(batch=2)" in refused(
        lambda: layer(params, x, state=layer.init_state(batch=3))
    )
    assert "each of the 2 layers" in refused(lambda: layer(params[:1], x))
    assert "of type dict" in refused(lambda: layer(params[0], x))
    assert "init_state(batch=...)" in refused(lambda: layer(params, x, state=state[:1]))
    assert "needs key=" in refused(lambda: layer(params, x, train=True))
    broken = [params[0], {**params[1], "weight_hh_reverse": x}]
    text = refused(lambda: layer(broken, x))
    assert "params[1]['weight_hh_reverse'] is f32[2,5,3], but has to be [16, 4]" in text
    text = refused(lambda: nn.Sequential(layer)([broken], x))
    assert "params[0][1]['weight_hh_reverse']" in text
    for lengths in ([5, 3, 1], 5, [5.0, 3.0]):
        assert "has to be integers [2]" in refused(lambda: layer(params, x, lengths=lengths))
    for lengths in ([6, 1], [-1, 2]):
        with pytest.raises(gf.errors.AssertionFailed, match="LSTM: lengths have to be from 0 to 5"):
            layer(params, x, lengths=lengths)
    cell = nn.Sequential(nn.BatchNorm(3), nn.RNNCell(3, 4))
    own = cell.init(random.key(0))
    assert "which is of all [2]" in refused(lambda: nn.RNN(cell)(own, x, lengths=[5, 1]))
    assert "no state to carry" in refused(lambda: nn.RNN(nn.Linear(3, 4))(own[1], x))
    with pytest.raises(TypeError, match="length"):
        layer(params, x, length=[5, 5])  # pyright: ignore[reportCallIssue]
