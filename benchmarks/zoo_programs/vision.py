"""Networks of images: residual networks, gradients of examples, parts of diffusion models."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo_programs.program import (
    Function,
    Program,
    conv,
    cross_entropy,
    dense,
    halved,
    integers,
    key,
    layers,
    network,
    normal,
    seed,
    uniform,
)


def kernel(rng: np.random.Generator, size: int, inputs: int, outputs: int) -> np.ndarray:
    """Weights of a convolution, [H, W, I, O]."""
    return normal(rng, size, size, inputs, outputs, scale=(2 / (size * size * inputs)) ** 0.5)


def pair(width: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Scale and shift of a normalisation."""
    return {"b": np.zeros(width, np.float32), "w": np.full(width, scale, np.float32)}


# ---- ResNet-50 ----


def resnet_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    stem = {"conv": kernel(rng, s.stem, 3, s.width), "norm": pair(s.width)}
    blocks, inputs = [], s.width
    for stage, count in enumerate(s.stages):
        middle = s.width * 2**stage
        for i in range(count):
            p = {
                "conv1": kernel(rng, 1, inputs, middle), "norm1": pair(middle),
                "conv2": kernel(rng, 3, middle, middle), "norm2": pair(middle),
                "conv3": kernel(rng, 1, middle, 4 * middle), "norm3": pair(4 * middle, 0.2),
            }  # fmt: skip
            if i == 0:
                p |= {"conv4": kernel(rng, 1, inputs, 4 * middle), "norm4": pair(4 * middle)}
            blocks.append(p)
            inputs = 4 * middle
    params = {"stem": stem, "blocks": blocks, "head": dense(rng, inputs, s.classes)}
    images = normal(rng, s.batch, s.image, s.image, 3)
    return params, images, integers(rng, s.classes, s.batch)


def strides(s: Any) -> list[int]:
    """Of the blocks, in order."""
    return [
        2 if stage and not i else 1 for stage, count in enumerate(s.stages) for i in range(count)
    ]


def resnet(xp: Any, s: Any) -> Function:
    """Bottleneck blocks, with the statistics of the batch, in bfloat16."""

    def norm(p: Any, x: Any) -> Any:
        y = x.astype(xp.np.float32)
        mean = xp.np.mean(y, (0, 1, 2))
        var = xp.np.mean(xp.np.square(y), (0, 1, 2)) - xp.np.square(mean)
        scale = xp.lax.rsqrt(var + 1e-5) * p["w"]
        return ((y - mean) * scale + p["b"]).astype(x.dtype)

    def block(p: Any, x: Any, stride: int) -> Any:
        y = xp.nn.relu(norm(p["norm1"], conv(xp, x, p["conv1"])))
        y = xp.nn.relu(norm(p["norm2"], conv(xp, y, p["conv2"], stride, [(1, 1), (1, 1)])))
        y = norm(p["norm3"], conv(xp, y, p["conv3"]))
        if "conv4" in p:
            x = norm(p["norm4"], conv(xp, x, p["conv4"], stride))
        return xp.nn.relu(x + y)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        p, x = halved(xp, params), images.astype(xp.np.bfloat16)
        half = s.stem // 2
        x = conv(xp, x, p["stem"]["conv"], 2, [(half, half), (half, half)])
        x = xp.nn.relu(norm(p["stem"]["norm"], x))
        edges = [(0, 0), (1, 1), (1, 1), (0, 0)]
        x = xp.lax.reduce_window(x, -xp.np.inf, xp.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)
        for layer, stride in zip(p["blocks"], strides(s)):
            x = block(layer, x, stride)
        x = xp.np.mean(x.astype(xp.np.float32), (1, 2)).astype(x.dtype)
        logits = x @ p["head"]["w"] + p["head"]["b"]
        return cross_entropy(xp, logits.astype(xp.np.float32), labels)

    return xp.value_and_grad(loss)


def torch_conv(t: Any, x: Any, w: Any, stride: int, padding: int) -> Any:
    """A convolution of images [N, C, H, W] with a kernel [H, W, I, O]."""
    return t.F.conv2d(x, w.permute(3, 2, 0, 1), stride=stride, padding=padding)


def torch_resnet(t: Any, s: Any) -> Function:
    def norm(p: Any, x: Any) -> Any:
        return t.F.batch_norm(x, None, None, p["w"], p["b"], training=True)

    def block(p: Any, x: Any, stride: int) -> Any:
        y = t.F.relu(norm(p["norm1"], torch_conv(t, x, p["conv1"], 1, 0)))
        y = t.F.relu(norm(p["norm2"], torch_conv(t, y, p["conv2"], stride, 1)))
        y = norm(p["norm3"], torch_conv(t, y, p["conv3"], 1, 0))
        if "conv4" in p:
            x = norm(p["norm4"], torch_conv(t, x, p["conv4"], stride, 0))
        return t.F.relu(x + y)

    def half(tree: Any) -> Any:
        # Norms stay in float32, as autocast has them.
        if isinstance(tree, dict):
            return {k: x if k.startswith("norm") else half(x) for k, x in tree.items()}
        return [half(x) for x in tree] if isinstance(tree, list) else tree.bfloat16()

    def loss(params: Any, images: Any, labels: Any) -> Any:
        p = half(params)
        # A view of NHWC: channels last.
        x = images.bfloat16().permute(0, 3, 1, 2)
        x = torch_conv(t, x, p["stem"]["conv"], 2, s.stem // 2)
        x = t.F.max_pool2d(t.F.relu(norm(p["stem"]["norm"], x)), 3, 2, 1)
        for layer, stride in zip(p["blocks"], strides(s)):
            x = block(layer, x, stride)
        logits = x.mean((2, 3)) @ p["head"]["w"] + p["head"]["b"]
        return t.F.cross_entropy(logits.float(), labels.long())

    return t.value_and_grad(loss)


# ---- gradients of every example ----


def examples_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    side = s.image // 4
    params = {
        "conv1": kernel(rng, 3, 1, s.width),
        "conv2": kernel(rng, 3, s.width, 2 * s.width),
        "dense": layers(rng, side * side * 2 * s.width, 64, 10),
    }
    images = uniform(rng, s.batch, s.image, s.image, 1)
    return params, images, integers(rng, 10, s.batch)


def examples(xp: Any, s: Any) -> Function:
    """The mean of gradients that are clipped example by example, as private training has it."""

    def loss(p: Any, image: Any, label: Any) -> Any:
        x = xp.nn.relu(conv(xp, image[None], p["conv1"], 2))
        x = xp.nn.relu(conv(xp, x, p["conv2"], 2))
        return cross_entropy(xp, network(xp.nn.relu, p["dense"], x.reshape(-1)), label)

    def run(params: Any, images: Any, labels: Any) -> Any:
        grads = xp.vmap(xp.grad(loss), (None, 0, 0))(params, images, labels)
        squares = [xp.np.sum(xp.np.square(g.reshape(s.batch, -1)), 1) for g in flat(grads)]
        factor = xp.np.minimum(1.0, 1.0 / xp.np.sqrt(sum(squares) + 1e-12))
        return xp.tree.map(lambda g: xp.np.tensordot(factor, g, 1) / s.batch, grads)

    flat = lambda tree: xp.tree.leaves(tree)
    return run


# ---- a block of a U-Net ----


def block_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = [{"conv": kernel(rng, 3, s.width, s.width), "norm": pair(s.width)} for _ in range(2)]
    return params, normal(rng, s.batch, s.image, s.image, s.width)


def group_norm(xp: Any, p: Any, x: Any, groups: int) -> Any:
    """Over the channels of a group and all places, in float32."""
    n, h, w, c = x.shape
    y = x.astype(xp.np.float32).reshape(n, h, w, groups, c // groups)
    mean = xp.np.mean(y, (1, 2, 4), keepdims=True)
    var = xp.np.var(y, (1, 2, 4), keepdims=True)
    y = ((y - mean) * xp.lax.rsqrt(var + 1e-5)).reshape(x.shape)
    return (y * p["w"] + p["b"]).astype(x.dtype)


def unet_block(xp: Any, s: Any) -> Function:
    """Norm, activation and convolution, twice, added to what came in."""

    def loss(params: Any, x: Any) -> Any:
        x, p = x.astype(xp.np.bfloat16), halved(xp, params)
        y = x
        for layer in p:
            y = conv(xp, xp.nn.silu(group_norm(xp, layer["norm"], y, s.groups)), layer["conv"])
        return xp.np.mean(xp.np.square((x + y).astype(xp.np.float32)))

    return xp.value_and_grad(loss, argnums=(0, 1))


def torch_unet_block(t: Any, s: Any) -> Function:
    def loss(params: Any, x: Any) -> Any:
        x = x.bfloat16().permute(0, 3, 1, 2)
        y = x
        for p in params:
            w, b = p["norm"]["w"].bfloat16(), p["norm"]["b"].bfloat16()
            y = t.F.silu(t.F.group_norm(y, s.groups, w, b))
            y = torch_conv(t, y, p["conv"].bfloat16(), 1, 1)
        return (x + y).float().square().mean()

    return t.value_and_grad(loss, (0, 1))


# ---- models that make images ----


def vae_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    params = {
        "encoder": layers(rng, s.pixels, s.hidden, 2 * s.latent),
        "decoder": layers(rng, s.latent, s.hidden, s.pixels),
    }
    return params, uniform(rng, s.batch, s.pixels), seed()


def vae(xp: Any, s: Any) -> Function:
    """The bound of a variational autoencoder, and its gradient."""

    def loss(params: Any, x: Any, seed: Any) -> Any:
        mean, log_std = xp.np.split(network(xp.nn.relu, params["encoder"], x), 2, axis=-1)
        noise = xp.random.normal(key(xp, seed), mean.shape)
        z = mean + xp.np.exp(log_std) * noise
        logits = network(xp.nn.relu, params["decoder"], z)
        likelihood = xp.np.sum(x * logits - xp.nn.softplus(logits), -1)
        apart = 0.5 * xp.np.sum(xp.np.exp(2 * log_std) + mean * mean - 1 - 2 * log_std, -1)
        return xp.np.mean(apart - likelihood)

    return xp.value_and_grad(loss)


def diffusion_inputs(rng: np.random.Generator, s: Any) -> tuple[Any, ...]:
    w = s.width
    unit = lambda a, b: {
        "norm": pair(a), "conv": kernel(rng, 3, a, b), "time": dense(rng, s.time, b),
    }  # fmt: skip
    params = {
        "first": kernel(rng, 3, 3, w),
        "down": [unit(w, w), unit(w, 2 * w)],
        "middle": unit(2 * w, 2 * w),
        "up": [unit(4 * w, w), unit(2 * w, w)],
        "last": kernel(rng, 3, w, 3),
    }
    images = normal(rng, s.batch, s.image, s.image, 3)
    return params, images, uniform(rng, s.batch), seed()


def diffusion(xp: Any, s: Any) -> Function:
    """The error of the noise that a small U-Net finds, and its gradient."""

    def unit(p: Any, x: Any, time: Any) -> Any:
        y = conv(xp, xp.nn.silu(group_norm(xp, p["norm"], x, s.groups)), p["conv"])
        return y + (time @ p["time"]["w"] + p["time"]["b"])[:, None, None, :]

    def larger(x: Any) -> Any:
        return xp.np.repeat(xp.np.repeat(x, 2, axis=1), 2, axis=2)

    def smaller(x: Any) -> Any:
        n, h, w, c = x.shape
        return xp.np.mean(x.reshape(n, h // 2, 2, w // 2, 2, c), (2, 4))

    def loss(p: Any, images: Any, at: Any, seed: Any) -> Any:
        noise = xp.random.normal(key(xp, seed), images.shape)
        angle = (0.5 * xp.np.pi * at)[:, None, None, None]
        x = xp.np.cos(angle) * images + xp.np.sin(angle) * noise
        waves = at[:, None] * xp.np.exp(xp.np.linspace(0.0, 6.0, s.time // 2))
        time = xp.np.concatenate([xp.np.sin(waves), xp.np.cos(waves)], axis=-1)
        x = conv(xp, x, p["first"])
        a = unit(p["down"][0], x, time)
        b = unit(p["down"][1], smaller(a), time)
        c = unit(p["middle"], smaller(b), time)
        y = unit(p["up"][0], xp.np.concatenate([larger(c), b], axis=-1), time)
        y = unit(p["up"][1], xp.np.concatenate([larger(y), a], axis=-1), time)
        return xp.np.mean(xp.np.square(conv(xp, y, p["last"]) - noise))

    return xp.value_and_grad(loss)


PROGRAMS = (
    Program(
        "resnet50", "vision", "ResNet-50, loss and gradient, bfloat16", resnet, resnet_inputs,
        {"batch": 64, "image": 224, "width": 64, "stages": (3, 4, 6, 3), "stem": 7,
         "classes": 1000},
        {"batch": 8, "image": 32, "width": 8, "stages": (1, 1), "stem": 7, "classes": 5},
        # The gradients of 53 layers in bfloat16 are noise to this extent; in float32 they agree.
        6e-1, torch=torch_resnet,
    ),
    Program(
        "gradients-of-examples", "vision", "clipped gradients of 1024 examples of a CNN",
        examples, examples_inputs, {"batch": 1024, "image": 28, "width": 32},
        {"batch": 4, "image": 8, "width": 4}, 1e-2,
    ),
    Program(
        "unet-block", "vision", "group norm and 3 x 3 convolutions of 256 channels, bfloat16",
        unet_block, block_inputs, {"batch": 16, "image": 64, "width": 256, "groups": 32},
        {"batch": 2, "image": 8, "width": 8, "groups": 4}, 1e-1, torch=torch_unet_block,
    ),
    Program(
        "vae", "generative models", "a variational autoencoder, loss and gradient",
        vae, vae_inputs, {"batch": 512, "pixels": 784, "hidden": 512, "latent": 32},
        {"batch": 4, "pixels": 12, "hidden": 8, "latent": 2}, 1e-2,
    ),
    Program(
        "diffusion", "generative models", "a small U-Net that finds noise, loss and gradient",
        diffusion, diffusion_inputs,
        {"batch": 64, "image": 32, "width": 64, "groups": 16, "time": 128},
        {"batch": 2, "image": 8, "width": 4, "groups": 2, "time": 8}, 2e-2,
    ),
)  # fmt: skip
