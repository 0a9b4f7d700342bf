"""SpeechBrain: networks and features for speech of any length."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from speechbrain.dataio.dataio import length_to_mask
from speechbrain.lobes.models import dual_path as lobes
from speechbrain.lobes.models.transformer import Branchformer, Conformer
from speechbrain.lobes.models.transformer.TransformerASR import TransformerASR
from speechbrain.nnet.attention import LocationAwareAttention, RelPosEncXL
from speechbrain.nnet.RNN import LSTM
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, noise

TABLE = Table()
SIZES = ((2, 40), (3, 50), (1, 33))
WAVES = ((2, 1600), (3, 2400), (1, 800))


def of(path: str, *args: Any, **config: Any) -> Any:
    module, _, name = path.rpartition(".")

    def build() -> nn.Module:
        return getattr(importlib.import_module(f"speechbrain.{module}"), name)(
            *args, **config
        ).eval()

    return build


def features(b: int, n: int) -> tuple[Tensor]:
    return (noise(b, n, 16),)


def relative(b: int, n: int) -> tuple[Tensor, Tensor]:
    return noise(b, n, 16), torch.linspace(0.5, 1.0, b)


CHANNELS = {
    "channels": [8, 8, 8, 8, 24],
    "attention_channels": 8,
    "lin_neurons": 8,
    "res2net_scale": 2,
    "se_channels": 8,
}
add = TABLE.add
add("ECAPA_TDNN", of("lobes.models.ECAPA_TDNN.ECAPA_TDNN", 16, **CHANNELS), features, SIZES)
add("ECAPA_TDNN_lengths", of("lobes.models.ECAPA_TDNN.ECAPA_TDNN", 16, **CHANNELS), relative, SIZES)
add(
    "Xvector",
    of(
        "lobes.models.Xvector.Xvector",
        in_channels=16,
        tdnn_blocks=3,
        tdnn_channels=[8, 8, 24],
        tdnn_kernel_sizes=[5, 3, 1],
        tdnn_dilations=[1, 2, 1],
        lin_neurons=8,
    ),
    features,
    SIZES,
)
add(
    "ResNet_speaker",
    of(
        "lobes.models.ResNet.ResNet",
        input_size=16,
        channels=[8, 8, 8, 8],
        block_sizes=[1, 1, 1, 1],
        lin_neurons=8,
    ),
    features,
    SIZES,
)
add(
    "CRDNN",
    of(
        "lobes.models.CRDNN.CRDNN",
        input_size=16,
        cnn_blocks=1,
        cnn_channels=(4,),
        cnn_kernelsize=(3, 3),
        time_pooling=True,
        rnn_class=LSTM,
        rnn_layers=1,
        rnn_neurons=8,
        dnn_blocks=1,
        dnn_neurons=8,
    ),
    features,
    SIZES,
)
add(
    "ConvolutionFrontEnd",
    of(
        "lobes.models.convolution.ConvolutionFrontEnd",
        (2, 40, 16),
        num_blocks=2,
        num_layers_per_block=1,
        out_channels=[4, 8],
    ),
    features,
    SIZES,
)
add("TransformerASR", lambda: transformer(), lambda b, n: (noise(b, n, 16),), SIZES)
add(
    "TransformerEncoder",
    of("lobes.models.transformer.Transformer.TransformerEncoder", 2, 2, 32, d_model=16),
    features,
    SIZES,
)
add("ConformerEncoder", lambda: conformer("ConformerEncoder"), features, SIZES)
add("BranchformerEncoder", lambda: conformer("BranchformerEncoder"), features, SIZES)
add(
    "PositionalEncoding",
    of("lobes.models.transformer.Transformer.PositionalEncoding", 16),
    features,
    SIZES,
)
add("RelPosEncXL", of("nnet.attention.RelPosEncXL", 16), features, SIZES)
add("Fbank", of("lobes.features.Fbank", n_mels=16), lambda b, n: (noise(b, n),), WAVES)
add(
    "Fbank_deltas",
    of("lobes.features.Fbank", n_mels=16, deltas=True, context=True),
    lambda b, n: (noise(b, n),),
    WAVES,
)
add("MFCC", of("lobes.features.MFCC", n_mels=16, n_mfcc=8), lambda b, n: (noise(b, n),), WAVES)
add("STFT", of("processing.features.STFT", sample_rate=16000), lambda b, n: (noise(b, n),), WAVES)
add(
    "InputNormalization",
    of("processing.features.InputNormalization", norm_type="sentence"),
    relative,
    SIZES,
)
add(
    "SincConv",
    of("nnet.CNN.SincConv", input_shape=(2, 1600), out_channels=8, kernel_size=25),
    lambda b, n: (noise(b, n),),
    WAVES,
)
add("Conv1d", of("nnet.CNN.Conv1d", 8, 3, in_channels=16), features, SIZES)
add("LiGRU", of("nnet.RNN.LiGRU", 8, input_shape=(2, 40, 16)), features, SIZES, refused="GP111")
add("LSTM", of("nnet.RNN.LSTM", 8, input_size=16, bidirectional=True), features, SIZES)
add(
    "LSTM_lengths",
    of("nnet.RNN.LSTM", 8, input_size=16),
    lambda b, n: {"x": noise(b, n, 16), "lengths": torch.linspace(0.5, 1.0, b)},
    SIZES,
    refused="GP120",
)
add(
    "AttentiveStatisticsPooling",
    of("lobes.models.ECAPA_TDNN.AttentiveStatisticsPooling", 16, 8),
    lambda b, n: (noise(b, 16, n), torch.linspace(0.5, 1.0, b)),
    SIZES,
)
# It adds noise.
add("StatisticsPooling", of("nnet.pooling.StatisticsPooling"), features, SIZES, only_sizes=True)
add(
    "StatisticsPooling_lengths",  # one item of the batch after the other, in Python
    of("nnet.pooling.StatisticsPooling"),
    relative,
    SIZES,
    refused="GP111",
)
add(
    "LocationAwareAttention",
    lambda: location(),
    lambda b, n: (noise(b, n, 16), torch.full((b,), n), noise(b, 8)),
    SIZES,
)
add(
    "DualPath_mask",
    of("lobes.models.dual_path.Encoder", kernel_size=4, out_channels=8),
    lambda b, n: (noise(b, n),),
    WAVES,
)
add("SepFormer", lambda: dual_path(), lambda b, n: (noise(b, 8, n),), SIZES)
add(
    "HifiganGenerator",
    of(
        "lobes.models.HifiGAN.HifiganGenerator",
        in_channels=16,
        out_channels=1,
        resblock_type="1",
        resblock_dilation_sizes=[[1, 3, 5]],
        resblock_kernel_sizes=[3],
        upsample_kernel_sizes=[4, 4],
        upsample_initial_channel=8,
        upsample_factors=[2, 2],
    ),
    lambda b, n: (noise(b, 16, n),),
    SIZES,
)
add(
    "UnitHifigan_resample",
    of("augment.time_domain.Resample", orig_freq=16000, new_freq=8000),
    lambda b, n: (noise(b, n),),
    WAVES,
)
add(
    "Tacotron_postnet",
    of(
        "lobes.models.Tacotron2.Postnet",
        n_mel_channels=8,
        postnet_embedding_dim=8,
        postnet_n_convolutions=2,
    ),
    lambda b, n: (noise(b, 8, n),),
    SIZES,
)
add("Softmax_log", of("nnet.activations.Softmax", apply_log=True), features, SIZES)
add("length_to_mask", lambda: Call(masked).eval(), relative, SIZES)


def masked(x: Tensor, lengths: Tensor) -> Tensor:

    return x * length_to_mask(lengths * x.shape[1], max_len=x.shape[1]).unsqueeze(-1)


def transformer() -> nn.Module:

    model = TransformerASR(
        tgt_vocab=10,
        input_size=16,
        d_model=16,
        nhead=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_ffn=32,
    )
    return Call(lambda m, x: m.encode(x), model).eval()


def conformer(name: str) -> nn.Module:

    if name == "ConformerEncoder":
        model = Conformer.ConformerEncoder(
            1, 16, 32, 2, kernel_size=5, attention_type="RelPosMHAXL"
        )
    else:
        model = Branchformer.BranchformerEncoder(1, 16, 2, kernel_size=5, csgu_linear_units=16)
    return Call(lambda m, p, x: m(x, pos_embs=p(x)), model, RelPosEncXL(16)).eval()


def location() -> nn.Module:

    def attend(m: Any, x: Tensor, lengths: Tensor, state: Tensor) -> Any:
        m.reset()
        return m(x, lengths, state)

    return Call(attend, LocationAwareAttention(16, 8, 8, 8, 4, 5)).eval()


def dual_path() -> nn.Module:

    intra = lobes.SBTransformerBlock(1, 8, 2, d_ffn=16)
    inter = lobes.SBTransformerBlock(1, 8, 2, d_ffn=16)
    return lobes.Dual_Path_Model(8, 8, intra, inter, num_layers=1, K=10, num_spks=2).eval()
