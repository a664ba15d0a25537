"""Recurrences, networks of audio, and speech."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import (
    Function,
    Program,
    cross_entropy,
    dense,
    integers,
    normal,
    uniform,
)

# ---- recurrent networks ----


def lstm_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    scale = s.hidden**-0.5
    params = [
        {
            "b": np.zeros(4 * s.hidden, np.float32),
            "wh": normal(rng, s.hidden, 4 * s.hidden, scale=scale),
            "wx": normal(rng, s.hidden, 4 * s.hidden, scale=scale),
        }
        for _ in range(s.layers)
    ]
    return params, normal(rng, s.steps, s.batch, s.hidden)


def lstm(xp: Any, s: Any) -> Function:
    """Layers of an LSTM over time, the mean square of what comes out, and its gradient."""

    def layer(p: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            h, c = carry
            gates = x @ p["wx"] + h @ p["wh"] + p["b"]
            i, f, g, o = xp.np.split(gates, 4, axis=-1)
            c = xp.nn.sigmoid(f) * c + xp.nn.sigmoid(i) * xp.np.tanh(g)
            h = xp.nn.sigmoid(o) * xp.np.tanh(c)
            return (h, c), h

        zero = xp.np.zeros(xs.shape[1:], xs.dtype)
        return xp.lax.scan(step, (zero, zero), xs)[1]

    def loss(params: Any, xs: Any) -> Any:
        for p in params:
            xs = layer(p, xs)
        return xp.np.mean(xp.np.square(xs))

    return xp.value_and_grad(loss)


def torch_lstm(t: Any, s: Any) -> Function:
    """torch's own layers, cuDNN's on a GPU, which torch.compile would leave alone."""

    def loss(params: Any, xs: Any) -> Any:
        zero = xs.new_zeros(s.layers, s.batch, s.hidden)
        flat: list[Any] = []
        for p in params:
            flat += [p["wx"].T.contiguous(), p["wh"].T.contiguous(), p["b"], p["b"] * 0]
        y = t.torch.lstm(xs, (zero, zero), flat, True, s.layers, 0.0, True, False, False)[0]
        return y.square().mean()

    return t.gradient(loss)


def gru_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    scale = s.hidden**-0.5
    params = {
        "b": np.zeros(3 * s.hidden, np.float32),
        "head": dense(rng, s.hidden, s.classes),
        "wh": normal(rng, s.hidden, 3 * s.hidden, scale=scale),
        "wx": normal(rng, s.inputs, 3 * s.hidden, scale=s.inputs**-0.5),
    }
    return params, normal(rng, s.steps, s.batch, s.inputs), integers(rng, s.classes, s.batch)


def gru(xp: Any, s: Any) -> Function:
    """A classifier of sequences, with few of them in a batch."""

    def loss(p: Any, xs: Any, labels: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            rx, zx, nx = xp.np.split(x, 3, axis=-1)
            rh, zh, nh = xp.np.split(h @ p["wh"], 3, axis=-1)
            z = xp.nn.sigmoid(zx + zh)
            n = xp.np.tanh(nx + xp.nn.sigmoid(rx + rh) * nh)
            return (1 - z) * n + z * h, None

        first = xp.np.zeros((s.batch, s.hidden), xs.dtype)
        h, _ = xp.lax.scan(step, first, xs @ p["wx"] + p["b"])
        return cross_entropy(xp, h @ p["head"]["w"] + p["head"]["b"], labels)

    return xp.value_and_grad(loss)


def recurrence_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    factors = uniform(rng, s.batch, s.steps, s.width, low=0.9, high=1.0)
    return factors, normal(rng, s.batch, s.steps, s.width)


def recurrence(xp: Any, s: Any) -> Function:
    """h = a h + x at every step, by an associative scan."""

    def both(left: Any, right: Any) -> Any:
        (a, x), (b, y) = left, right
        return a * b, x * b + y

    return lambda a, x: xp.lax.associative_scan(both, (a, x), axis=1)[1]


# ---- audio ----


def wavenet_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    scale = (2 * s.width) ** -0.5
    params = {
        "first": dense(rng, 1, s.width),
        "layers": [
            {
                "gated": normal(rng, 2, s.width, 2 * s.width, scale=scale),
                "out": dense(rng, s.width, 2 * s.width),
            }
            for _ in s.dilations
        ],
        "last": dense(rng, s.width, s.levels),
    }
    audio = uniform(rng, s.batch, s.samples, low=-1.0)
    return params, audio, integers(rng, s.levels, s.batch, s.samples)


def wavenet(xp: Any, s: Any) -> Function:
    """Gated, dilated, causal convolutions; the loss of the next sample and its gradient."""

    def dilated(x: Any, w: Any, dilation: int) -> Any:
        return xp.lax.conv_general_dilated(
            x, w, (1,), [(dilation, 0)], rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )  # fmt: skip

    def loss(p: Any, audio: Any, levels: Any) -> Any:
        x = audio[..., None] @ p["first"]["w"] + p["first"]["b"]
        total = xp.np.zeros_like(x)
        for layer, dilation in zip(p["layers"], s.dilations):
            a, b = xp.np.split(dilated(x, layer["gated"], dilation), 2, axis=-1)
            y = xp.np.tanh(a) * xp.nn.sigmoid(b)
            y, skipped = xp.np.split(y @ layer["out"]["w"] + layer["out"]["b"], 2, axis=-1)
            x, total = x + y, total + skipped
        logits = xp.nn.relu(total) @ p["last"]["w"] + p["last"]["b"]
        return cross_entropy(xp, logits, levels)

    return xp.value_and_grad(loss)


def torch_wavenet(t: Any, s: Any) -> Function:
    def loss(p: Any, audio: Any, levels: Any) -> Any:
        one = lambda x, p: t.F.conv1d(x, p["w"].T[..., None], p["b"])
        x = one(audio[:, None], p["first"])
        total = t.torch.zeros_like(x)
        for layer, dilation in zip(p["layers"], s.dilations):
            padded = t.F.pad(x, (dilation, 0))
            y = t.F.conv1d(padded, layer["gated"].permute(2, 1, 0), dilation=dilation)
            a, b = y.chunk(2, 1)
            y, skipped = one(t.torch.tanh(a) * t.torch.sigmoid(b), layer["out"]).chunk(2, 1)
            x, total = x + y, total + skipped
        return t.F.cross_entropy(one(t.F.relu(total), p["last"]), levels.long())

    return t.value_and_grad(loss)


def mel_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    # Triangles, evenly spaced.
    at = np.linspace(0, s.bands + 1, s.window // 2 + 1, dtype=np.float32)
    bands = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(1, s.bands + 1, dtype=np.float32)))
    scale = (2 / (3 * s.width)) ** 0.5
    widths = [s.bands, s.width, s.width, s.width]
    params = {
        "convs": [normal(rng, 3, a, b, scale=scale) for a, b in zip(widths, widths[1:])],
        "head": dense(rng, s.width, s.classes),
    }
    audio = normal(rng, s.batch, s.samples)
    return params, audio, bands.astype(np.float32), integers(rng, s.classes, s.batch)


def mel(xp: Any, s: Any) -> Function:
    """Spectrograms of audio on the mel scale, and a network of convolutions with its gradient."""

    def spectrogram(audio: Any, bands: Any) -> Any:
        starts = xp.np.arange((s.samples - s.window) // s.hop + 1) * s.hop
        frames = audio[:, starts[:, None] + xp.np.arange(s.window)]
        window = 0.5 - 0.5 * xp.np.cos(2 * xp.np.pi * xp.np.arange(s.window) / s.window)
        spectrum = xp.np.fft.rfft(frames * window)
        power = xp.np.square(xp.np.real(spectrum)) + xp.np.square(xp.np.imag(spectrum))
        return xp.np.log(power @ bands + 1e-3)

    def loss(p: Any, audio: Any, bands: Any, labels: Any) -> Any:
        x = spectrogram(audio, bands)
        for w in p["convs"]:
            x = xp.lax.conv_general_dilated(
                x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
            x = xp.nn.gelu(x)
        logits = xp.np.mean(x, axis=1) @ p["head"]["w"] + p["head"]["b"]
        return cross_entropy(xp, logits, labels)

    return xp.value_and_grad(loss)


def ctc_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    labels = integers(rng, s.words - 1, s.batch, s.labels) + 1
    return normal(rng, s.steps, s.batch, s.words), labels.astype(np.int32)


def ctc(xp: Any, s: Any) -> Function:
    """The loss of labels without known times, by the sum over all alignments in logarithms."""
    nothing = -1e30

    def loss(logits: Any, labels: Any) -> Any:
        logs = xp.nn.log_softmax(logits, axis=-1)
        # A blank, 0, before, between and after the labels.
        blanks = xp.np.zeros_like(labels)
        states = xp.np.stack([blanks, labels], axis=-1).reshape(s.batch, 2 * s.labels)
        states = xp.np.pad(states, ((0, 0), (0, 1)))
        before = xp.np.pad(states, ((0, 0), (2, 0)))[:, :-2]
        skips = (states != 0) & (states != before)
        spoken = xp.np.take_along_axis(logs, states[None], axis=-1)
        first = xp.np.where(xp.np.arange(states.shape[1]) < 2, spoken[0], nothing)

        def shifted(x: Any, by: int) -> Any:
            return xp.np.pad(x, ((0, 0), (by, 0)), constant_values=nothing)[:, :-by]

        def step(alpha: Any, now: Any) -> Any:
            stay = xp.np.logaddexp(alpha, shifted(alpha, 1))
            jump = xp.np.where(skips, shifted(alpha, 2), nothing)
            return xp.np.logaddexp(stay, jump) + now, None

        alpha, _ = xp.lax.scan(step, first, spoken[1:])
        return -xp.np.mean(xp.np.logaddexp(alpha[:, -1], alpha[:, -2]))

    return xp.value_and_grad(loss)


PROGRAMS = (
    Program(
        "lstm", "recurrent networks", "two layers of an LSTM over 512 steps, loss and gradient",
        lstm, lstm_inputs, {"batch": 64, "steps": 512, "hidden": 512, "layers": 2},
        {"batch": 2, "steps": 6, "hidden": 8}, 1e-2, torch=torch_lstm,
    ),
    Program(
        "dilated-convolutions", "audio", "a WaveNet of 10 layers, loss and gradient",
        wavenet, wavenet_inputs,
        {"batch": 8, "samples": 16384, "width": 64, "levels": 256,
         "dilations": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)},
        {"batch": 2, "samples": 24, "width": 4, "levels": 8, "dilations": (1, 2, 4)},
        2e-2, torch=torch_wavenet,
    ),
    Program(
        "linear-recurrence", "recurrent networks", "h = a h + x over 4096 steps, associative_scan",
        recurrence, recurrence_inputs, {"batch": 8, "steps": 4096, "width": 512},
        {"batch": 2, "steps": 13, "width": 4},
    ),
    Program(
        "gru", "recurrent networks", "a GRU with 4 sequences of 256 steps, loss and gradient",
        gru, gru_inputs, {"batch": 4, "steps": 256, "inputs": 64, "hidden": 128, "classes": 10},
        {"batch": 2, "steps": 5, "inputs": 4, "hidden": 8, "classes": 3}, 1e-2,
    ),
    Program(
        "mel-network", "speech", "mel spectrograms of 32 x 10 s and convolutions, gradient",
        mel, mel_inputs,
        {"batch": 32, "samples": 160000, "window": 400, "hop": 160, "bands": 80, "width": 256,
         "classes": 35},
        {"batch": 2, "samples": 200, "window": 32, "hop": 8, "bands": 6, "width": 4, "classes": 3},
        2e-2,
    ),
    Program(
        "ctc", "speech", "the loss of alignments over 512 frames by scan, and its gradient",
        ctc, ctc_inputs, {"batch": 32, "steps": 512, "labels": 64, "words": 128},
        {"batch": 2, "steps": 9, "labels": 3, "words": 5}, 1e-2, scatters=True,
    ),
)  # fmt: skip
