"""torchaudio: its models and transforms that are written in Python."""

from __future__ import annotations

from typing import Any

import torch
import torchaudio
from torch import Tensor, nn

from tests.foreign.rows import Call, Table, integers, noise

TABLE = Table()


def model(name: str, *args: Any, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(torchaudio.models, name)(*args, **config).eval()

    return build


def transform(name: str, **config: Any) -> Any:
    def build() -> nn.Module:

        return getattr(torchaudio.transforms, name)(**config).eval()

    return build


def warm(model: nn.Module) -> nn.Module:
    """Called once: then it has its parameters."""
    with torch.no_grad():
        model(noise(2, 400))
    return model


def lengths(batch: int, length: int) -> Tensor:
    """The longest first."""
    return torch.tensor([length - i for i in range(batch)])


SIZES = ((2, 24), (3, 30), (1, 17))
TABLE.add(
    "Conformer",
    model("Conformer", 16, num_heads=2, ffn_dim=32, num_layers=2, depthwise_conv_kernel_size=5),
    lambda b, n: (noise(b, n, 16), lengths(b, n)),
    SIZES,
)
TABLE.add(
    "Emformer",
    model("Emformer", 16, 2, 32, 2, 4, right_context_length=1, left_context_length=4),
    lambda b, n: (noise(b, n + 1, 16), lengths(b, n)),
    ((2, 24), (3, 24), (4, 24)),
)
WAV = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(16, 10, 5), (16, 3, 2)],
    "extractor_conv_bias": False,
    "encoder_embed_dim": 16,
    "encoder_projection_dropout": 0.1,
    "encoder_pos_conv_kernel": 8,
    "encoder_pos_conv_groups": 2,
    "encoder_num_layers": 2,
    "encoder_num_heads": 2,
    "encoder_attention_dropout": 0.1,
    "encoder_ff_interm_features": 32,
    "encoder_ff_interm_dropout": 0.1,
    "encoder_dropout": 0.1,
    "encoder_layer_norm_first": False,
    "encoder_layer_drop": 0.1,
    "aux_num_out": 11,
}
WAVES = ((2, 400), (3, 635), (1, 320))
TABLE.add("wav2vec2", model("wav2vec2_model", **WAV), lambda b, n: (noise(b, n),), WAVES)
TABLE.add(
    "wav2vec2_lengths",
    model("wav2vec2_model", **WAV),
    lambda b, n: (noise(b, n), torch.tensor([n - 40 * i for i in range(b)])),
    WAVES,
)
WAVLM = {**WAV, "encoder_num_buckets": 32, "encoder_max_distance": 80}
TABLE.add("wavlm", model("wavlm_model", **WAVLM), lambda b, n: (noise(b, n),), WAVES)
TABLE.add(
    "ConvTasNet",
    model(
        "ConvTasNet",
        enc_num_feats=16,
        msk_num_feats=8,
        msk_num_hidden_feats=16,
        msk_num_layers=2,
        msk_num_stacks=1,
    ),
    lambda b, n: (noise(b, 1, n),),
    ((2, 400), (3, 640), (1, 320)),  # lengths that need no padding
)
TABLE.add(
    "DeepSpeech", model("DeepSpeech", 8, n_hidden=16), lambda b, n: (noise(b, 1, n, 8),), SIZES
)
TABLE.add(
    "Wav2Letter",
    model("Wav2Letter", 10, "waveform", 1),
    lambda b, n: (noise(b, 1, n),),
    ((2, 4000), (1, 5000)),
)
TABLE.add(
    "WaveRNN",
    model(
        "WaveRNN",
        upsample_scales=[2, 2],
        n_classes=8,
        hop_length=4,
        n_res_block=1,
        n_rnn=8,
        n_fc=8,
        kernel_size=5,
        n_freq=6,
        n_hidden=8,
        n_output=8,
    ),
    lambda b, n: (noise(b, 1, (n - 4) * 4), noise(b, 1, 6, n)),
    ((2, 8), (3, 10), (1, 6)),
)
TABLE.add(
    "Tacotron2",
    model(
        "Tacotron2",
        n_mels=8,
        symbol_embedding_dim=8,
        encoder_embedding_dim=8,
        decoder_rnn_dim=8,
        attention_rnn_dim=8,
        attention_hidden_dim=8,
        prenet_dim=8,
        postnet_embedding_dim=8,
        n_symbol=20,
        encoder_n_convolution=1,
        postnet_n_convolution=2,
        decoder_dropout=0.0,
        attention_dropout=0.0,
    ),
    lambda b, n: (integers(20, b, n), lengths(b, n), noise(b, 8, 5), torch.full((b,), 5)),
    ((2, 7), (3, 9)),
    only_sizes=True,  # its prenet drops out in inference, too
    refused="GP120",
)
TABLE.add(
    "HDemucs",
    model("HDemucs", ["a", "b"], channels=4),
    lambda b, n: (noise(b, 2, n),),
    ((1, 16384), (2, 16384)),
)
TABLE.add(
    "squim_objective",
    model(
        "squim_objective_model",
        feat_dim=16,
        win_len=8,
        d_model=16,
        nhead=2,
        hidden_dim=8,
        num_blocks=1,
        rnn_type="LSTM",
        chunk_size=7,
    ),
    lambda b, n: (noise(b, n),),
    ((2, 200), (3, 200)),
)
TABLE.add(
    "emformer_rnnt_transcribe",
    lambda: Call(
        lambda m, x, y: m.transcribe(x, y),
        model(
            "emformer_rnnt_model",
            input_dim=8,
            encoding_dim=8,
            num_symbols=16,
            segment_length=4,
            right_context_length=1,
            time_reduction_input_dim=4,
            time_reduction_stride=2,
            transformer_num_heads=2,
            transformer_ffn_dim=16,
            transformer_num_layers=1,
            transformer_dropout=0.1,
            transformer_activation="gelu",
            transformer_left_context_length=4,
            transformer_max_memory_size=0,
            transformer_weight_init_scale_strategy="depthwise",
            transformer_tanh_on_mem=True,
            symbol_embedding_dim=8,
            num_lstm_layers=1,
            lstm_layer_norm=True,
            lstm_layer_norm_epsilon=1e-3,
            lstm_dropout=0.3,
        )(),
    ).eval(),
    lambda b, n: (noise(b, n + 2, 8), lengths(b, n) // 2 * 2),
    ((2, 16), (3, 16)),
)

add = TABLE.add
wave = lambda b, n: (noise(b, n),)
add("Spectrogram", transform("Spectrogram", n_fft=64), wave, WAVES)
add(
    "Spectrogram_complex_abs",
    lambda: Call(lambda t, x: t(x).abs().log1p(), transform("Spectrogram", n_fft=64, power=None)()),
    wave,
    WAVES,
)
add("MelSpectrogram", transform("MelSpectrogram", n_fft=128, n_mels=16), wave, WAVES)
add("MFCC", transform("MFCC", n_mfcc=8, melkwargs={"n_fft": 128, "n_mels": 16}), wave, WAVES)
add("LFCC", transform("LFCC", n_lfcc=8, n_filter=16, speckwargs={"n_fft": 128}), wave, WAVES)
add("Resample", transform("Resample", orig_freq=16000, new_freq=11025), wave, WAVES)
add(
    "InverseSpectrogram",
    lambda: Call(
        lambda f, g, x: g(f(x)),
        transform("Spectrogram", n_fft=64, power=None)(),
        transform("InverseSpectrogram", n_fft=64)(),
    ),
    wave,
    WAVES,
)
add(
    "GriffinLim",
    transform("GriffinLim", n_fft=64, n_iter=4, rand_init=False),
    lambda b, n: (noise(b, 33, n).abs(),),
    SIZES,
)
add(
    "AmplitudeToDB",
    transform("AmplitudeToDB", top_db=80.0),
    lambda b, n: (noise(b, 1, 16, n).abs(),),
    SIZES,
)
add("ComputeDeltas", transform("ComputeDeltas"), lambda b, n: (noise(b, 16, n),), SIZES)
add(
    "SlidingWindowCmn",
    transform("SlidingWindowCmn", cmn_window=10),
    lambda b, n: (noise(b, n, 8),),
    ((2, 24), (1, 24), (3, 24)),
)
add("Vol", transform("Vol", gain=6.0, gain_type="db"), wave, WAVES)
add("Fade", transform("Fade", fade_in_len=40, fade_out_len=60), wave, WAVES)
add(
    "TimeStretch",
    lambda: Call(
        lambda f, g, x: g(f(x), 1.2).abs(),
        transform("Spectrogram", n_fft=64, power=None)(),
        transform("TimeStretch", n_freq=33)(),
    ),
    wave,
    WAVES,
)
add(
    "PitchShift",
    lambda: warm(transform("PitchShift", sample_rate=8000, n_steps=2, n_fft=64)()),
    wave,
    ((2, 400), (3, 400)),
)
add(
    "MuLaw",
    lambda: Call(
        lambda f, g, x: (f(x), g(f(x))), transform("MuLawEncoding")(), transform("MuLawDecoding")()
    ),
    lambda b, n: (noise(b, n).clamp(-1, 1),),
    WAVES,
)
add("SpectralCentroid", transform("SpectralCentroid", sample_rate=8000, n_fft=64), wave, WAVES)
add("Convolve", transform("Convolve"), lambda b, n: (noise(b, n), noise(b, 9)), SIZES)
add("FFTConvolve", transform("FFTConvolve"), lambda b, n: (noise(b, n), noise(b, 9)), SIZES)
add("Preemphasis", transform("Preemphasis"), wave, WAVES)
