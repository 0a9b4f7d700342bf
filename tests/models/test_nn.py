"""Every layer of torch.nn: captured static and with a dynamic batch, run at other batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import graphport as gp
from tests.helpers import check, compare, draws


def r(*sizes: int) -> Callable[[int], tuple[Any, ...]]:
    """One input of these sizes behind the batch."""
    return lambda n: (torch.randn(n, *sizes),)


def classes(count: int, *sizes: int) -> Callable[[int], torch.Tensor]:
    return lambda n: torch.randint(0, count, (n, *sizes))


class Layer(NamedTuple):
    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]
    axis: int = 0
    """Where the batch is, in every input."""
    train: bool = False
    open_: tuple[dict[int, str] | None, ...] | None = None
    """Names of the dynamic dims by input, when it is not the batch of all of them."""


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


ACTIVATIONS = {
    name: Layer(make, r(6, 4))
    for name, make in {
        "ELU": nn.ELU,
        "Hardshrink": nn.Hardshrink,
        "Hardsigmoid": nn.Hardsigmoid,
        "Hardtanh": nn.Hardtanh,
        "Hardswish": nn.Hardswish,
        "LeakyReLU": nn.LeakyReLU,
        "LogSigmoid": nn.LogSigmoid,
        "PReLU": lambda: nn.PReLU(6),
        "ReLU": nn.ReLU,
        "ReLU_inplace": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
        "ReLU6": nn.ReLU6,
        "RReLU": nn.RReLU,
        "SELU": nn.SELU,
        "CELU": nn.CELU,
        "GELU": nn.GELU,
        "GELU_tanh": lambda: nn.GELU(approximate="tanh"),
        "Sigmoid": nn.Sigmoid,
        "SiLU": nn.SiLU,
        "Mish": nn.Mish,
        "Softplus": nn.Softplus,
        "Softshrink": nn.Softshrink,
        "Softsign": nn.Softsign,
        "Tanh": nn.Tanh,
        "Tanhshrink": nn.Tanhshrink,
        "Threshold": lambda: nn.Threshold(0.1, 2.0),
        "GLU": lambda: nn.GLU(1),
        "Softmin": lambda: nn.Softmin(1),
        "Softmax": lambda: nn.Softmax(1),
        "LogSoftmax": lambda: nn.LogSoftmax(-1),
        "Identity": nn.Identity,
        "Dropout_eval": nn.Dropout,
        "Flatten": nn.Flatten,
        "Unflatten": lambda: nn.Unflatten(1, (2, 3)),
        "Linear": lambda: nn.Linear(4, 3),
        "LayerNorm": lambda: nn.LayerNorm(4),
        "LayerNorm_2": lambda: nn.LayerNorm((6, 4)),
        "LayerNorm_plain": lambda: nn.LayerNorm(4, elementwise_affine=False),
        "RMSNorm": lambda: nn.RMSNorm(4),
    }.items()
}
ACTIVATIONS["Softmax2d"] = Layer(nn.Softmax2d, r(3, 4, 5))
ACTIVATIONS["AdaptiveLogSoftmax"] = Layer(
    lambda: Apply(nn.AdaptiveLogSoftmaxWithLoss(32, 20, [5, 10], div_value=2.0).log_prob), r(32)
)

NORMS = {
    "BatchNorm1d": Layer(lambda: nn.BatchNorm1d(6), r(6)),
    "BatchNorm1d_line": Layer(lambda: nn.BatchNorm1d(6), r(6, 4)),
    "BatchNorm2d": Layer(lambda: nn.BatchNorm2d(6), r(6, 4, 5)),
    "BatchNorm3d": Layer(lambda: nn.BatchNorm3d(6), r(6, 2, 3, 4)),
    "BatchNorm_no_stats": Layer(lambda: nn.BatchNorm1d(6, track_running_stats=False), r(6, 4)),
    "BatchNorm1d_train": Layer(lambda: nn.BatchNorm1d(6), r(6, 4), train=True),
    "BatchNorm2d_train": Layer(lambda: nn.BatchNorm2d(6), r(6, 4, 5), train=True),
    "BatchNorm3d_train": Layer(lambda: nn.BatchNorm3d(6), r(6, 2, 3, 4), train=True),
    "SyncBatchNorm_eval": Layer(lambda: nn.SyncBatchNorm(6), r(6, 4, 5)),
    "InstanceNorm1d": Layer(lambda: nn.InstanceNorm1d(6), r(6, 4)),
    "InstanceNorm2d": Layer(lambda: nn.InstanceNorm2d(6, affine=True), r(6, 4, 5)),
    "InstanceNorm3d": Layer(lambda: nn.InstanceNorm3d(6), r(6, 2, 3, 4)),
    "InstanceNorm_stats": Layer(lambda: nn.InstanceNorm2d(6, track_running_stats=True), r(6, 4, 5)),
    "InstanceNorm_train": Layer(
        lambda: nn.InstanceNorm2d(6, track_running_stats=True), r(6, 4, 5), train=True
    ),
    "GroupNorm": Layer(lambda: nn.GroupNorm(3, 6), r(6, 4, 5)),
    "GroupNorm_flat": Layer(lambda: nn.GroupNorm(3, 6), r(6)),
    "LocalResponseNorm": Layer(lambda: nn.LocalResponseNorm(2), r(6, 4, 5)),
    "CrossMapLRN": Layer(lambda: nn.LocalResponseNorm(3, alpha=0.1), r(6, 4)),
    "SpectralNorm_eval": Layer(
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), r(4)
    ),
    "WeightNorm": Layer(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), r(4)),
    "Orthogonal": Layer(lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 6)), r(4)),
}

CONVS = {
    "Conv1d": Layer(lambda: nn.Conv1d(4, 6, 3), r(4, 9)),
    "Conv1d_circular": Layer(
        lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), r(4, 9)
    ),
    "Conv2d": Layer(lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), r(4, 9, 8)),
    "Conv2d_same": Layer(lambda: nn.Conv2d(4, 6, 3, padding="same"), r(4, 9, 8)),
    "Conv2d_groups": Layer(lambda: nn.Conv2d(4, 8, (3, 2), groups=2, dilation=2), r(4, 9, 8)),
    "Conv2d_depthwise": Layer(lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), r(4, 9, 8)),
    "Conv2d_reflect": Layer(
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), r(4, 9, 8)
    ),
    "Conv2d_replicate": Layer(
        lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate"), r(4, 9, 8)
    ),
    "Conv3d": Layer(lambda: nn.Conv3d(2, 3, 2), r(2, 4, 5, 6)),
    "ConvTranspose1d": Layer(lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), r(4, 5)),
    "ConvTranspose2d": Layer(
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), r(4, 5, 6)
    ),
    "ConvTranspose2d_groups": Layer(
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2, bias=False), r(4, 5, 6)
    ),
    "ConvTranspose3d": Layer(lambda: nn.ConvTranspose3d(2, 3, 2), r(2, 3, 4, 5)),
    "Fold": Layer(lambda: nn.Fold((4, 5), 2), r(12, 12)),
    "Unfold": Layer(lambda: nn.Unfold(2, padding=1), r(3, 4, 5)),
    "PixelShuffle": Layer(lambda: nn.PixelShuffle(2), r(8, 3, 4)),
    "PixelUnshuffle": Layer(lambda: nn.PixelUnshuffle(2), r(2, 4, 6)),
    "ChannelShuffle": Layer(lambda: nn.ChannelShuffle(2), r(4, 3, 5)),
}

POOLS = {
    "MaxPool1d": Layer(lambda: nn.MaxPool1d(2), r(3, 9)),
    "MaxPool1d_indices": Layer(lambda: nn.MaxPool1d(2, return_indices=True), r(3, 9)),
    "MaxPool2d": Layer(lambda: nn.MaxPool2d(3, 2, padding=1), r(3, 8, 9)),
    "MaxPool2d_ceil": Layer(lambda: nn.MaxPool2d(3, 2, ceil_mode=True), r(3, 8, 9)),
    "MaxPool2d_indices": Layer(lambda: nn.MaxPool2d(2, return_indices=True), r(3, 8, 9)),
    "MaxPool3d": Layer(lambda: nn.MaxPool3d(2), r(3, 4, 5, 6)),
    "AvgPool1d": Layer(lambda: nn.AvgPool1d(2), r(3, 9)),
    "AvgPool2d": Layer(lambda: nn.AvgPool2d((2, 3), ceil_mode=True), r(3, 8, 9)),
    "AvgPool3d": Layer(lambda: nn.AvgPool3d(2), r(3, 4, 5, 6)),
    "LPPool1d": Layer(lambda: nn.LPPool1d(2, 2), r(3, 9)),
    "LPPool2d": Layer(lambda: nn.LPPool2d(2, 2), r(3, 8, 9)),
    "LPPool3d": Layer(lambda: nn.LPPool3d(2, 2), r(3, 4, 5, 6)),
    "AdaptiveAvgPool1d": Layer(lambda: nn.AdaptiveAvgPool1d(4), r(3, 9)),
    "AdaptiveAvgPool2d": Layer(lambda: nn.AdaptiveAvgPool2d((None, 3)), r(3, 8, 9)),
    "AdaptiveAvgPool3d": Layer(lambda: nn.AdaptiveAvgPool3d(2), r(3, 4, 5, 6)),
    "AdaptiveMaxPool1d": Layer(lambda: nn.AdaptiveMaxPool1d(4), r(3, 9)),
    "AdaptiveMaxPool2d": Layer(lambda: nn.AdaptiveMaxPool2d(3, return_indices=True), r(3, 8, 9)),
    "AdaptiveMaxPool3d": Layer(lambda: nn.AdaptiveMaxPool3d(2), r(3, 4, 5, 6)),
    "FractionalMaxPool2d": Layer(lambda: nn.FractionalMaxPool2d(2, output_size=4), r(3, 8, 9)),
    "FractionalMaxPool3d": Layer(lambda: nn.FractionalMaxPool3d(2, output_size=3), r(3, 6, 6, 7)),
    "MaxUnpool1d": Layer(
        lambda: Apply(
            lambda x: nn.MaxUnpool1d(2)(*nn.functional.max_pool1d(x, 2, return_indices=True))
        ),
        r(3, 8),
    ),
    "MaxUnpool2d": Layer(
        lambda: Apply(
            lambda x: nn.MaxUnpool2d(2)(*nn.functional.max_pool2d(x, 2, return_indices=True))
        ),
        r(3, 8, 6),
    ),
    "MaxUnpool3d": Layer(
        lambda: Apply(
            lambda x: nn.MaxUnpool3d(2)(*nn.functional.max_pool3d(x, 2, return_indices=True))
        ),
        r(3, 4, 4, 6),
    ),
}

PADS = {
    f"{kind}Pad{n}d": Layer(
        lambda kind=kind, n=n: getattr(nn, f"{kind}Pad{n}d")(
            *((1, 2.5) if kind == "Constant" else (1,))
        ),
        r(3, *(4, 5, 6)[:n]),
    )
    for kind in ("Reflection", "Replication", "Zero", "Constant", "Circular")
    for n in (1, 2, 3)
}
UPSAMPLES = {
    f"Upsample_{mode}_{how}": Layer(
        lambda mode=mode, given=given: nn.Upsample(mode=mode, **given),
        r(3, *(4, 5, 6)[: {"linear": 1, "trilinear": 3}.get(mode, 2)]),
    )
    for mode in ("nearest", "linear", "bilinear", "bicubic", "trilinear")
    for how, given in {
        "x2": {"scale_factor": 2},
        "x1.5": {"scale_factor": 1.5},
        "to7": {"size": 7},
    }.items()
}
UPSAMPLES["Upsample_corners"] = Layer(
    lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), r(3, 4, 5)
)
UPSAMPLES["UpsamplingNearest2d"] = Layer(lambda: nn.UpsamplingNearest2d(scale_factor=3), r(3, 4, 5))
UPSAMPLES["UpsamplingBilinear2d"] = Layer(lambda: nn.UpsamplingBilinear2d(size=(6, 7)), r(3, 4, 5))

RANDOM = {
    "Dropout": Layer(nn.Dropout, r(6, 4), train=True),
    "Dropout1d": Layer(nn.Dropout1d, r(6, 4), train=True),
    "Dropout2d": Layer(nn.Dropout2d, r(6, 4, 5), train=True),
    "Dropout3d": Layer(nn.Dropout3d, r(3, 4, 5, 6), train=True),
    "AlphaDropout": Layer(nn.AlphaDropout, r(6, 4), train=True),
    "FeatureAlphaDropout": Layer(nn.FeatureAlphaDropout, r(6, 4), train=True),
    "RReLU_train": Layer(nn.RReLU, r(6, 4), train=True),
}


def steps(*sizes: int) -> Callable[[int], tuple[Any, ...]]:
    """A sequence of 5 with the batch second."""
    return lambda n: (torch.randn(5, n, *sizes),)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        return self.lstm(x, (h, c))


RECURRENT = {
    "RNN": Layer(lambda: nn.RNN(4, 3), steps(4), axis=1),
    "RNN_relu": Layer(
        lambda: nn.RNN(4, 3, nonlinearity="relu", bidirectional=True), steps(4), axis=1
    ),
    "LSTM": Layer(lambda: nn.LSTM(4, 3, num_layers=2), steps(4), axis=1),
    "LSTM_batch_first": Layer(lambda: nn.LSTM(4, 3, batch_first=True, bidirectional=True), r(5, 4)),
    "LSTM_projection": Layer(lambda: nn.LSTM(4, 6, proj_size=3), steps(4), axis=1),
    "LSTM_state": Layer(
        Stateful,
        lambda n: (torch.randn(5, n, 4), torch.randn(1, n, 3), torch.randn(1, n, 3)),
        axis=1,
    ),
    "GRU": Layer(lambda: nn.GRU(4, 3, num_layers=2, batch_first=True), r(5, 4)),
    "GRU_state": Layer(
        lambda: nn.GRU(4, 3), lambda n: (torch.randn(5, n, 4), torch.randn(1, n, 3)), axis=1
    ),
    "RNNCell": Layer(lambda: nn.RNNCell(4, 3), r(4)),
    "LSTMCell": Layer(lambda: nn.LSTMCell(4, 3), r(4)),
    "GRUCell": Layer(lambda: nn.GRUCell(4, 3), lambda n: (torch.randn(n, 4), torch.randn(n, 3))),
    "LSTM_length": Layer(
        lambda: nn.LSTM(4, 3, batch_first=True), lambda n: (torch.randn(3, n + 1, 4),), axis=1
    ),
}


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(8, 2, batch_first=True, **options)


def masked(n: int) -> tuple[Any, ...]:
    x = torch.randn(n, 5, 8)
    padding = torch.zeros(n, 5, dtype=torch.bool)
    padding[-1, 3:] = True
    return x, padding


class Masked(nn.Module):
    """Self-attention with a padding mask and a causal mask."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> Any:
        causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
        return self.attention(
            x, x, x, key_padding_mask=padding, attn_mask=causal, need_weights=self.need_weights
        )


class Encoder(nn.Module):
    def __init__(self, norm_first: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)


def two(*sizes: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda n: (torch.randn(n, *sizes), torch.randn(n, *sizes))


def sequences(n: int) -> tuple[Any, ...]:
    return torch.randn(n, 5, 8), torch.randn(n, 6, 8)


ATTENTION = {
    "MultiheadAttention": Layer(attention(), lambda n: (torch.randn(n, 5, 8),) * 3),
    "MultiheadAttention_kv": Layer(
        attention(kdim=6, vdim=4, add_bias_kv=True, add_zero_attn=True),
        lambda n: (torch.randn(n, 5, 8), torch.randn(n, 3, 6), torch.randn(n, 3, 4)),
    ),
    "MultiheadAttention_first": Layer(
        lambda: nn.MultiheadAttention(8, 2), lambda n: (torch.randn(5, n, 8),) * 3, axis=1
    ),
    "MultiheadAttention_train": Layer(
        attention(dropout=0.2), lambda n: (torch.randn(n, 5, 8),) * 3, train=True
    ),
    "MultiheadAttention_masks": Layer(lambda: Masked(True), masked),
    "MultiheadAttention_sdpa": Layer(lambda: Masked(False), masked),
    "TransformerEncoder": Layer(Encoder, masked),
    "TransformerEncoder_train": Layer(lambda: Encoder(dropout=0.1), masked, train=True),
    "TransformerEncoder_norm_first": Layer(lambda: Encoder(norm_first=True), masked),
    "TransformerDecoder": Layer(Decoder, sequences),
    "TransformerDecoder_train": Layer(Decoder, sequences, train=True),
    "Transformer": Layer(lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), sequences),
    "Transformer_train": Layer(
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), sequences, train=True
    ),
    "Transformer_lengths": Layer(
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
        lambda n: (torch.randn(2, n + 3, 8), torch.randn(2, n + 1, 8)),
        open_=({1: "source"}, {1: "target"}),
    ),
}

SPARSE = {
    "Embedding": Layer(
        lambda: nn.Embedding(20, 4, padding_idx=0), lambda n: (torch.randint(0, 20, (n, 5)),)
    ),
    **{
        f"EmbeddingBag_{mode}": Layer(
            lambda mode=mode: nn.EmbeddingBag(20, 4, mode=mode),
            lambda n: (torch.randint(0, 20, (n, 5)),),
        )
        for mode in ("sum", "mean", "max")
    },
    "EmbeddingBag_offsets": Layer(
        lambda: nn.EmbeddingBag(20, 4, mode="sum"),
        lambda n: (torch.randint(0, 20, (4 * n,)), torch.arange(n) * 4),
        open_=({0: "4*bags"}, {0: "bags"}),
    ),
    "Bilinear": Layer(
        lambda: nn.Bilinear(4, 3, 5), lambda n: (torch.randn(n, 4), torch.randn(n, 3))
    ),
    "CosineSimilarity": Layer(nn.CosineSimilarity, two(4)),
    "PairwiseDistance": Layer(nn.PairwiseDistance, two(4)),
    "cdist": Layer(
        lambda: Apply(torch.cdist), lambda n: (torch.randn(n, 5, 3), torch.randn(n, 4, 3))
    ),
}


def against(target: Callable[[int], torch.Tensor], *sizes: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda n: (torch.randn(n, *sizes), target(n))


def probabilities(*sizes: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda n: (torch.rand(n, *sizes), torch.rand(n, *sizes))


signs: Callable[[int], torch.Tensor] = lambda n: torch.randint(0, 2, (n,)) * 2.0 - 1

LOSSES = {
    f"{name}_{reduction}": Layer(partial(make, reduction=reduction), inputs)
    for reduction in ("mean", "none")
    for name, (make, inputs) in {
        "L1Loss": (nn.L1Loss, two(4)),
        "MSELoss": (nn.MSELoss, two(4)),
        "HuberLoss": (nn.HuberLoss, two(4)),
        "SmoothL1Loss": (nn.SmoothL1Loss, two(4)),
        "CrossEntropyLoss": (nn.CrossEntropyLoss, against(classes(4), 4)),
        "CrossEntropyLoss_image": (nn.CrossEntropyLoss, against(classes(4, 3, 2), 4, 3, 2)),
        "CrossEntropyLoss_smooth": (
            lambda reduction: nn.CrossEntropyLoss(label_smoothing=0.1, reduction=reduction),
            against(classes(4), 4),
        ),
        "CrossEntropyLoss_weight": (
            lambda reduction: nn.CrossEntropyLoss(torch.rand(4), reduction=reduction),
            against(classes(4), 4),
        ),
        "CrossEntropyLoss_probabilities": (nn.CrossEntropyLoss, probabilities(4)),
        "NLLLoss": (nn.NLLLoss, against(classes(4), 4)),
        "NLLLoss_image": (nn.NLLLoss, against(classes(4, 3, 2), 4, 3, 2)),
        "PoissonNLLLoss": (nn.PoissonNLLLoss, two(4)),
        "KLDivLoss": (
            lambda reduction: nn.KLDivLoss(
                reduction={"mean": "batchmean"}.get(reduction, reduction)
            ),
            probabilities(4),
        ),
        "BCELoss": (nn.BCELoss, probabilities(4)),
        "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss, probabilities(4)),
        "MarginRankingLoss": (
            nn.MarginRankingLoss,
            lambda n: (torch.randn(n), torch.randn(n), signs(n)),
        ),
        "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss, against(signs)),
        "MultiLabelMarginLoss": (nn.MultiLabelMarginLoss, against(classes(4, 4), 4)),
        "MultiMarginLoss": (nn.MultiMarginLoss, against(classes(4), 4)),
        "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss, probabilities(4)),
        "SoftMarginLoss": (nn.SoftMarginLoss, against(signs)),
        "CosineEmbeddingLoss": (
            nn.CosineEmbeddingLoss,
            lambda n: (torch.randn(n, 4), torch.randn(n, 4), signs(n)),
        ),
        "TripletMarginLoss": (
            nn.TripletMarginLoss,
            lambda n: (torch.randn(n, 4), torch.randn(n, 4), torch.randn(n, 4)),
        ),
    }.items()
}

# Their Python branches on the data of a tensor; torch.export refuses them as well.
DATA_DEPENDENT = {
    "BatchNorm_cumulative": Layer(lambda: nn.BatchNorm1d(6, momentum=None), r(6, 4), train=True),
    "GaussianNLLLoss": Layer(
        nn.GaussianNLLLoss,
        lambda n: (torch.randn(n, 4), torch.randn(n, 4), torch.full((n, 4), 0.5)),
    ),
}

LAYERS = {
    **ACTIVATIONS,
    **NORMS,
    **CONVS,
    **POOLS,
    **PADS,
    **UPSAMPLES,
    **RANDOM,
    **RECURRENT,
    **ATTENTION,
    **SPARSE,
    **LOSSES,
}


def spec(layer: Layer, args: tuple[Any, ...]) -> tuple[Any, ...]:
    dims: dict[str, Any] = {}

    def dim(text: str) -> Any:
        factor, _, name = text.rpartition("*")
        dims.setdefault(name, gp.Dim(name, min=1, max=64))
        return int(factor) * dims[name] if factor else dims[name]

    named = layer.open_ or ({layer.axis: "batch"},) * len(args)
    return tuple({d: dim(t) for d, t in one.items()} for one in named)


# torch says so on every call of an LSTM with projections.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


@pytest.mark.parametrize("name", LAYERS)
def test_static(name: str) -> None:
    layer = LAYERS[name]
    module = layer.make().train(layer.train)
    check(module, layer.inputs(3))


@pytest.mark.parametrize("name", LAYERS)
def test_dynamic_batch(name: str) -> None:
    layer = LAYERS[name]
    module = layer.make().train(layer.train)
    args = layer.inputs(3)
    # Training with one value per channel is an error in eager too.
    sizes = (2, 5) if layer.train and "Norm" in name else (1, 5)
    dims = spec(layer, args)
    others = [layer.inputs(n) for n in sizes]
    shapes = (dims,) if isinstance(module, Apply) else dims
    core = check(module, args, dynamic_shapes=shapes, others=others).run_decompositions()
    core.validate()
    for inputs in [] if draws(core) else others:
        compare(core, module, (inputs, {}))


@pytest.mark.parametrize("name", DATA_DEPENDENT)
def test_data_dependent_layers_are_refused_with_the_reason(name: str) -> None:
    layer = DATA_DEPENDENT[name]
    with pytest.raises(gp.errors.DataDependentError, match="data-dependent"):
        gp.export(layer.make().train(layer.train), layer.inputs(3))
