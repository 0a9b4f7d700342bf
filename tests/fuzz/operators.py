"""The statements that programs are made of: tables of templates.

What stands in braces is drawn. `{x:float r2+}` draws a tensor of the program and calls it x, `{x}`
is the same tensor again. Tensors are asked for by dtype and rank:

    any num float int bool complex    num: no bool, no complex; the small floats only where allowed
    r2 r2+ last4                      the rank, at least that rank, the size of the last dim

and relative to a tensor that was drawn before:

    dim x         one of its dims            dim2 x d     another one
    same x        the same sizes and dtype   with x       what broadcasts with it
    into x        what can be written to it  mask x       truth values of its sizes
    at x          what stands in brackets    index x d    positions of a dim, each once
    nth x d       one position of a dim

Numbers: `number` a number, `k` one of 1 2 3, `pad` one of 0 1 2, `size` a size or an expression of
sizes, `cond` a truth about sizes, `dtype` and `fdtype` a dtype.

Arguments stay where functions are tame: no division by what is nearly zero, no large exponents.
"""

# ruff: noqa: E501  a template is a line

from __future__ import annotations

# One template a line. A result that has several parts is one of them, or all of them added up.

POINTWISE = """
{x:num} + {y:with x}
{x:num} - {y:with x}
{x:num} * {y:with x}
{x:num} / ({y:with x} * {y} + 1)
{x:num} * {n:number} - {y:with x}
torch.add({x:num}, {y:with x}, alpha={k:k})
torch.sub({x:num}, {y:with x}, alpha={k:k})
torch.rsub({x:num}, {y:with x})
-{x:num}
{x:num}.abs()
{x:num}.sign()
{x:num}.square()
{x:float}.sin()
{x:float}.cos()
{x:float}.tanh()
{x:float}.sigmoid()
{x:float}.atan()
{x:float}.erf()
{x:float}.neg().exp().clamp(max=9)
{x:float}.clamp(max=3).exp()
{x:float}.clamp(max=2).exp2()
{x:float}.clamp(max=2).expm1()
({x:float}.abs() + 0.5).log()
({x:float}.abs() + 0.5).log2()
{x:float}.abs().log1p()
({x:float}.abs() + 0.5).sqrt()
({x:float}.abs() + 0.5).rsqrt()
({x:float}.abs() + 0.5).reciprocal()
({x:float}.abs() + 0.5) ** {n:number}
{x:num} ** 2
{x:float} ** 3
{k:k} ** {x:float}.clamp(-2, 2)
{x:float}.clamp(-0.9, 0.9).asin()
{x:float}.clamp(-0.9, 0.9).atanh()
{x:float}.clamp(-2, 2).sinh()
{x:float}.asinh()
torch.atan2({x:float}, {y:same x}.abs() + 0.5)
torch.hypot({x:float}, {y:same x})
torch.logaddexp({x:float}, {y:same x})
{x:float}.floor()
{x:float}.ceil()
{x:float}.round()
{x:float}.trunc()
{x:float}.frac()
{x:float}.round(decimals=1)
torch.remainder({x:num}, {k:k})
torch.fmod({x:num}, {k:k})
{x:num} // {k:k}
{x:num} % {k:k}
{x:int} // ({y:same x}.abs() + 1)
torch.div({x:num}, {k:k}, rounding_mode="trunc")
torch.div({x:num}, {k:k}, rounding_mode="floor")
torch.maximum({x:num}, {y:same x})
torch.minimum({x:num}, {y:same x})
torch.fmax({x:float}, {y:same x})
{x:num}.clamp(-1, {k:k})
{x:num}.clamp(min=0)
{x:num}.clamp(max={k:k})
torch.clamp({x:float}, {y:same x}, {y} + 1)
F.relu({x:num})
F.gelu({x:float})
F.gelu({x:float}, approximate="tanh")
F.silu({x:float})
F.mish({x:float})
F.elu({x:float})
F.selu({x:float})
F.celu({x:float}, 0.7)
F.leaky_relu({x:float}, 0.1)
F.softplus({x:float})
F.hardswish({x:float})
F.hardsigmoid({x:float})
F.hardtanh({x:float}, -0.7, 0.9)
F.logsigmoid({x:float})
F.softsign({x:float})
F.tanhshrink({x:float})
F.softshrink({x:float}, 0.3)
F.relu6({x:float})
F.threshold({x:float}, 0.1, -1.0)
F.prelu({x:float r2+}, torch.full((1,), 0.25, dtype={x}.dtype))
F.glu({x:float r1+ last4}, -1)
torch.lerp({x:float}, {y:same x}, 0.3)
torch.addcmul({x:float}, {y:same x}, {z:same x}, value=0.5)
torch.addcdiv({x:float}, {y:same x}, {z:same x}.abs() + 1)
torch.where({m:mask x}, {x:num}, {y:with x})
torch.where({x:num} > {n:number}, {x}, {y:same x})
{x:num} > {y:with x}
{x:num} <= {y:with x}
{x:num} == {k:k}
{x:num} != {y:same x}
{x:float}.isnan()
{x:float}.isfinite()
torch.isclose({x:float}, {y:same x})
{x:bool} & {y:same x}
{x:bool} | {y:same x}
{x:bool} ^ {y:same x}
~{x:bool}
{x:bool}.logical_not()
torch.logical_and({x:num}, {y:same x})
{x:int} & {k:k}
{x:int} | {y:same x}
{x:int} ^ {y:same x}
~{x:int}
{x:int} << {k:k}
{x:int} >> {k:k}
{x:float}.nan_to_num(0.5)
torch.heaviside({x:float}, {y:same x})
torch.copysign({x:float}, {y:same x})
torch.xlogy({x:float}, {y:same x}.abs() + 0.5)
{x:float}.sinc()
{x:float}.deg2rad()
{x:float}.positive()
{x:float}.logit(0.2)
{x:bool} * {n:number}
{x:bool} + {y:with x}
{x:num}.bool()
{x:num}.float()
{x:num}.double()
{x:float}.half()
{x:float}.bfloat16()
{x:num}.to({t:fdtype})
{x:bool}.to({t:dtype})
{x:int}.to({t:dtype})
{x:float}.nan_to_num(0, 9, -9).clamp(-50, 50).to(torch.int64)
{x:float}.nan_to_num(0, 9, -9).clamp(-50, 50).to(torch.int8)
{x:float}.nan_to_num(0, 9, -9).clamp(0, 50).to(torch.uint8)
{x:num}.type_as({y:any})
{x:num}.to({y:float})
torch.full_like({x:any}, {k:k})
torch.zeros_like({x:any})
torch.ones_like({x:any}, dtype={t:dtype})
{x:any}.clone()
{x:float}.clone(memory_format=torch.contiguous_format)
torch.polar({x:float}.float().abs(), {y:same x}.float())
torch.complex({x:float}.float(), {y:same x}.float())
"""

REDUCE = """
{x:num}.sum()
{x:num r1+}.sum({d:dim x})
{x:num r1+}.sum({d:dim x}, keepdim=True)
{x:num r2+}.sum(({d:dim x}, {e:dim2 x d}))
{x:bool}.sum()
{x:num r1+}.sum({d:dim x}, dtype=torch.float32)
{x:float}.mean()
{x:float r1+}.mean({d:dim x})
{x:float r2+}.mean((-1, -2), keepdim=True)
{x:float r1+}.var({d:dim x})
{x:float r1+}.var({d:dim x}, unbiased=False)
{x:float r1+}.std({d:dim x}, keepdim=True)
torch.var_mean({x:float r1+}, {d:dim x})[0]
{x:float r1+}.clamp(-1.5, 1.5).prod({d:dim x})
{x:num}.max()
{x:num}.min()
{x:num r1+}.amax({d:dim x})
{x:num r1+}.amin({d:dim x}, keepdim=True)
{x:num r1+}.max({d:dim x}).values
{x:float r1+}.max({d:dim x}).indices
{x:float r1+}.min({d:dim x}, keepdim=True)[1]
{x:float r1+}.argmax({d:dim x})
{x:float}.argmin()
{x:float r1+}.aminmax(dim={d:dim x}).max
{x:bool}.any()
{x:bool r1+}.all({d:dim x})
{x:num r1+}.any({d:dim x})
{x:num r1+}.count_nonzero({d:dim x})
{x:float r1+}.norm(dim={d:dim x})
torch.linalg.vector_norm({x:float})
torch.linalg.vector_norm({x:float r1+}, 1, {d:dim x})
{x:float r1+}.logsumexp({d:dim x})
{x:float r1+}.softmax({d:dim x})
{x:float r1+}.log_softmax({d:dim x})
{x:float r1+}.softmax({d:dim x}, dtype=torch.float64)
F.softmin({x:float r1+}, {d:dim x})
{x:num r1+}.cumsum({d:dim x})
{x:float r1+}.clamp(-1.2, 1.2).cumprod({d:dim x})
{x:float r1+}.cummax({d:dim x}).values
{x:float r1+}.cummax({d:dim x})[1]
{x:float r1+}.logcumsumexp({d:dim x})
{x:float r1+}.median({d:dim x}).values
{x:float r1+}.nansum({d:dim x})
{x:float r1+}.quantile(0.25, {d:dim x})
{x:float r1+}.diff(dim={d:dim x})
torch.trapezoid({x:float r1+}, dim={d:dim x})
F.normalize({x:float r1+}, dim={d:dim x})
F.layer_norm({x:float r1+}, {x}.shape[-1:])
F.layer_norm({x:float r2+}, {x}.shape[-2:])
F.rms_norm({x:float r1+}, {x}.shape[-1:])
F.instance_norm({x:float r3+})
F.group_norm({x:float r2+}, 1)
F.batch_norm({x:float r2+}, None, None, training=True)
F.cosine_similarity({x:float r1+}, {y:same x}, {d:dim x})
torch.cdist({x:float r2}.float(), {y:same x}.float())
F.mse_loss({x:float}, {y:same x})
F.l1_loss({x:float}, {y:same x}, reduction="none")
F.smooth_l1_loss({x:float}, {y:same x}, reduction="sum")
F.huber_loss({x:float}, {y:same x})
F.binary_cross_entropy_with_logits({x:float}, {y:same x}.sigmoid())
F.kl_div({x:float r1+}.log_softmax(-1), {y:same x}.softmax(-1), reduction="batchmean")
F.cross_entropy({x:float r2}, {x}.argmax(-1))
F.nll_loss({x:float r2}.log_softmax(-1), {x}.argmin(-1), reduction="none")
F.cosine_embedding_loss({x:float r2}, {y:same x}, torch.ones_like({x}[:, 0]))
"""

MATMUL = """
{x:float r2} @ {y:same x}.t()
{x:float r2}.t() @ {y:same x}
{x:float r2+} @ {y:same x}.mT
torch.matmul({x:float r1}, {y:same x})
torch.bmm({x:float r3}, {y:same x}.transpose(1, 2))
torch.baddbmm({n:number} * {x:float r3} @ {x}.mT, {x}, {y:same x}.mT, beta=0.5)
torch.mm({x:float r2}, {y:same x}.mT)
torch.addmm({z:float r1}.sum(), {x:float r2}, {y:same x}.t())
torch.mv({x:float r2}, {x}[0])
torch.dot({x:float r1}, {y:same x})
torch.outer({x:float r1}, {y:float r1})
torch.einsum("ij,kj->ik", {x:float r2}, {y:same x})
torch.einsum("ij,ij->i", {x:float r2}, {y:same x})
torch.einsum("bij,bkj->bik", {x:float r3}, {y:same x})
torch.einsum("...ij->...ji", {x:float r2+})
torch.tensordot({x:float r2}, {y:same x}, dims=([1], [1]))
torch.kron({x:float r1}, {y:float r1})
F.linear({x:float r1+}, {y:float r2 last4})
F.linear({x:float r1+ last4}, torch.eye(4, dtype={x}.dtype)[:3], torch.ones(3, dtype={x}.dtype))
F.bilinear({x:float r2 last4}, {y:same x}, torch.ones(2, 4, 4, dtype={x}.dtype))
F.scaled_dot_product_attention({x:float r3+}, {y:same x}, {z:same x})
F.scaled_dot_product_attention({x:float r3+}, {y:same x}, {y}, is_causal=True)
F.scaled_dot_product_attention({x:float r4}, {y:same x}, {y}, attn_mask={m:mask x}[..., :1])
F.scaled_dot_product_attention({x:float r3+}, {y:same x}, {y}, scale=0.5)
torch.triu({x:num r2+}, {k:k})
torch.tril({x:num r2+})
torch.trace({x:float r2})
torch.linalg.multi_dot([{x:float r2}, {x}.t(), {y:same x}])
torch.linalg.det({x:float r2}.float() @ {x}.float().t() + 3 * torch.eye({x}.shape[0]))
torch.linalg.inv({x:float r2}.float() @ {x}.float().t() + 3 * torch.eye({x}.shape[0]))
torch.linalg.cholesky({x:float r2}.float() @ {x}.float().t() + 3 * torch.eye({x}.shape[0]))
torch.cross({x:float r2}[..., :3], {y:same x}[..., :3], dim=-1)
"""

SPATIAL = """
F.conv1d({x:float r3}, torch.ones(2, {x}.shape[1], 1, dtype={x}.dtype))
F.conv1d({x:float r3}, torch.ones(2, {x}.shape[1], 2, dtype={x}.dtype) * 0.3, padding={p:pad})
F.conv1d({x:float r3}, torch.ones(2, {x}.shape[1], 3, dtype={x}.dtype), stride=2, padding={p:pad})
F.conv2d({x:float r4}, torch.ones(2, {x}.shape[1], 2, 2, dtype={x}.dtype) * 0.2, padding={p:pad})
F.conv2d({x:float r4}, torch.ones(2, {x}.shape[1], 1, 1, dtype={x}.dtype), stride=2)
F.conv2d({x:float r4}, torch.ones({x}.shape[1], 1, 2, 2, dtype={x}.dtype), groups={x}.shape[1])
F.conv2d({x:float r4}, torch.ones(1, {x}.shape[1], 3, 3, dtype={x}.dtype), padding="same")
F.conv_transpose1d({x:float r3}, torch.ones({x}.shape[1], 2, 2, dtype={x}.dtype), stride={k:k})
F.conv_transpose2d({x:float r4}, torch.ones({x}.shape[1], 1, 2, 2, dtype={x}.dtype))
F.max_pool1d({x:float r3}, 2)
F.max_pool1d({x:float r3}, {k:k}, 1, ceil_mode=True)
F.max_pool2d({x:float r4}, 2, stride={k:k})
F.max_pool2d({x:float r4}, (1, 2), ceil_mode=True)
F.avg_pool1d({x:float r3}, 2, padding=1)
F.avg_pool1d({x:float r3}, {k:k}, 2, ceil_mode=True)
F.avg_pool2d({x:float r4}, 2, padding=1, count_include_pad=False)
F.adaptive_avg_pool1d({x:float r3}, {k:k})
F.adaptive_avg_pool2d({x:float r4}, (1, {k:k}))
F.adaptive_max_pool1d({x:float r3}, {k:k})
F.interpolate({x:float r3}, scale_factor=2)
F.interpolate({x:float r3}, size={k:k}, mode="linear")
F.interpolate({x:float r4}, scale_factor=(1, 2), mode="bilinear")
F.interpolate({x:float r4}, size=(3, {k:k}), mode="nearest")
F.interpolate({x:float r4}, size=(2, 5), mode="bilinear", align_corners=True)
F.interpolate({x:float r3}, size={n:size} + 1, mode="nearest-exact")
F.pad({x:any r1+}, ({p:pad}, {q:pad}))
F.pad({x:num r2+}, ({p:pad}, 0, 0, {q:pad}), value={n:number})
F.pad({x:float r3}, ({p:pad}, 1), mode="reflect")
F.pad({x:float r3}, ({p:pad}, {q:pad}), mode="replicate")
F.pad({x:float r2}, (1, {p:pad}), mode="circular")
F.pad({x:num r1+}, (-1, {p:pad}))
F.unfold({x:float r4}, 2, padding={p:pad})
F.pixel_shuffle({x:float r4}.repeat(1, 4, 1, 1), 2)
F.pixel_unshuffle({x:float r4}.repeat(1, 1, 2, 2), 2)
F.local_response_norm({x:float r3}, 3)
F.lp_pool1d({x:float r3}.abs() + 0.1, 2, 2)
F.channel_shuffle({x:float r4}.repeat(1, 2, 1, 1), 2)
F.grid_sample({x:float r4}.float(), torch.zeros({x}.shape[0], 2, 3, 2) + 0.2, align_corners=False)
"""

SHAPE = """
torch.cat([{x:any r1+}, {y:same x}], {d:dim x})
torch.cat([{x:num r1+}, {y:num r1+}])
torch.cat([{x:any r1+}, {x}, {x}], {d:dim x})
torch.stack([{x:any}, {y:same x}])
torch.stack([{x:any}, {y:same x}], -1)
torch.hstack([{x:any r1+}, {y:same x}])
torch.vstack([{x:any r1+}, {y:same x}])
torch.concat([{x:any r1+}, {x}[:1]], 0)
{x:any r1+}.flip({d:dim x})
{x:any r2+}.flip(({d:dim x}, {e:dim2 x d}))
{x:any r1+}.roll({k:k}, {d:dim x})
{x:any}.roll(1)
{x:any r2+}.rot90(1, (0, 1))
{x:any r1+}.repeat({k:k}, *[1] * ({x}.dim() - 1))
{x:any r1+}.tile({k:k})
{x:any r1+}.repeat_interleave(2, {d:dim x})
{x:any r1+}.repeat_interleave({x}.shape[0])
{x:any r2}.t().contiguous()
{x:any r2+}.transpose(0, -1).clone()
{x:any r1+}.reshape(-1)
{x:any r1+}.reshape({x}.shape[0], -1)
{x:any r2+}.reshape(-1, {x}.shape[-1])
{x:any r1+}.reshape(1, *{x}.shape)
{x:any r1+ last4}.reshape(*{x}.shape[:-1], 2, 2)
{x:any r2+}.permute(*range({x}.dim())[::-1]).reshape(-1)
{x:any r1+}.tensor_split(2, {d:dim x})[0]
{x:num r1}.diag()
torch.diag_embed({x:num r1+})
torch.block_diag({x:num r2}, {y:num r2})
torch.meshgrid({x:num r1}, {y:num r1}, indexing="ij")[0] + 0
torch.cartesian_prod({x:num r1}, {y:same x})
torch.broadcast_to({x:any r1+}, (2, *{x}.shape)) * 1
torch.atleast_2d({x:any})
torch.vander({x:float r1}, 3)
{x:any r1+}.unflatten(0, (1, -1))
torch.combinations({x:num r1})
{x:float r4}.contiguous(memory_format=torch.channels_last)
torch.nn.utils.rnn.pad_sequence([{x:num r1+}, {x}[:1]], batch_first=True)
"""

# A result may share memory with its argument.
VIEWS = """
{x:any}.unsqueeze(0)
{x:any}.unsqueeze(-1)
{x:any r1+}.unsqueeze({d:dim x})
{x:any}.squeeze()
{x:any r1+}.squeeze({d:dim x})
{x:any r1+}.flatten()
{x:any r2+}.flatten(0, 1)
{x:any r2+}.flatten(-2)
{x:any r1+}.ravel()
{x:any r1+}.reshape(-1)
{x:any r1+}.reshape({x}.shape)
{x:any r1+}.reshape({x}.shape[0], -1)
{x:any r2+}.reshape(-1, {x}.shape[-1])
{x:any r1+}.view({x}.shape)
{x:any r1+}.view(-1)
{x:any r1+}.view(1, -1)
{x:any r1+}.view({x}.shape[0], -1)
{x:any r1+}.contiguous()
{x:any r2}.t()
{x:any r2+}.mT
{x:any r2+}.transpose({d:dim x}, {e:dim2 x d})
{x:any r2+}.permute(*range({x}.dim())[::-1])
{x:any r3+}.permute(1, 2, 0, *range(3, {x}.dim()))
{x:any r2+}.movedim({d:dim x}, 0)
{x:any r2+}.swapdims(0, -1)
{x:any r1+}.select({d:dim x}, {i:nth x d})
{x:any r1+}[{i:at x}]
{x:any r1+}[{i:at x}]
{x:any r1+}[::2]
{x:any r1+}[1::2]
{x:any r1+}[..., 1:]
{x:any r1+}[..., :-1]
{x:any r1+}[..., None]
{x:any r2+}[:, 1:]
{x:any r2+}[:, 0]
{x:any r1+}[:{n:size}]
{x:any r1+}.narrow({d:dim x}, 0, 1)
{x:any r1+}.narrow({d:dim x}, 1, 2)
{x:any r2}.diagonal()
{x:any r2+}.diagonal(1, {d:dim x}, {e:dim2 x d})
{x:any r1+}.unfold({d:dim x}, 2, 1)
{x:any r1+}.unfold({d:dim x}, 2, 2)
{x:any}.expand(2, *{x}.shape)
{x:any r1+}.unsqueeze(1).expand(-1, {k:k}, *[-1] * ({x}.dim() - 1))
{x:any r1+}.narrow({d:dim x}, 0, 1).expand({x}.shape)
{x:any r1+}.narrow({d:dim x}, 0, 1).expand_as({x})
torch.broadcast_to({x:any}, (2, *{x}.shape))
torch.broadcast_tensors({x:any}, {y:with x} * {x})[0]
torch.meshgrid({x:any r1}, {y:any r1}, indexing="ij")[0]
{x:any r1+}.split(2, {d:dim x})[0]
{x:any r1+}.split(2, {d:dim x})[-1]
{x:any r1+}.chunk(2, {d:dim x})[-1]
{x:any r1+}.unbind({d:dim x})[0]
{x:any r1+}.unbind({d:dim x})[-1]
{x:any r1+}.tensor_split(2)[1]
{x:any}.detach()
{x:any}.view_as({x})
{x:any}.to({x}.dtype)
{x:any}[...]
{x:float}.float()
{x:complex}.real
{x:complex}.imag
{x:complex}.conj()
torch.view_as_real({x:complex})
{x:float r4}.contiguous(memory_format=torch.channels_last)
{x:float r1+}.view(torch.int32) if {x}.dtype == torch.float32 else {x}
{x:any r1+ last4}.unflatten(-1, (2, 2))
{x:any r1+}.unflatten(0, (-1, 1))
"""

# What they give depends on how their argument lies in memory.
STRIDED = """
{x:any r1+}.as_strided({x}.shape, {x}.stride())
{x:any r1+}.as_strided((2,), (1,))
{x:any r1+}.as_strided((2, 2), (1, 1))
"""

COMPLEX = """
{x:complex} * {y:same x}
{x:complex} + {y:with x}
{x:complex} - {n:number}
{x:complex} / ({y:same x}.abs() + 1)
{x:complex}.conj() * {y:same x}
{x:complex}.abs()
{x:complex}.angle()
{x:complex}.exp()
{x:complex}.resolve_conj()
{x:complex}.real + {y:complex}.imag.sum()
{x:complex}.imag * 2
{x:complex r1+}.sum({d:dim x})
{x:complex r1+}.mean({d:dim x})
{x:complex r2} @ {y:same x}.mH
torch.view_as_real({x:complex}) + 1
torch.view_as_complex({x:float}.float().unsqueeze(-1).repeat(*[1] * {x}.dim(), 2))
torch.fft.fft({x:float r1+}.float())
torch.fft.rfft({x:float r1+}.float(), dim={d:dim x})
torch.fft.ifft({x:complex r1+})
torch.fft.irfft({x:complex r1+}, n=4)
{x:complex r1+}.cumsum({d:dim x})
"""

INDEX = """
{x:any r1+}[{i:at x}] * 1 if {x}.dtype != torch.bool else {x}
{x:any r1+}[{i:index x 0}]
{x:any r2+}[:, {i:index x 1}]
{x:any r2+}[{i:index x 0}[:1], {j:index x 1}[:1]]
{x:any r1+}[..., {i:index x -1}]
{x:any r1+}.index_select({d:dim x}, {i:index x d})
{x:any r1+}.take({i:index x 0})
{x:num r1+}.gather({d:dim x}, {x}.argsort({d}, stable=True))
{x:num r1+}.take_along_dim({x}.argsort({d:dim x}, stable=True), {d})
{x:num r1+}.masked_fill({m:mask x}, {n:number})
{x:num r1+}.index_fill({d:dim x}, {i:index x d}, {n:number})
{x:num r1+}.index_add({d:dim x}, torch.zeros({x}.shape[{d}], dtype=torch.int64), {y:same x})
{x:num r1+}.index_copy({d:dim x}, torch.arange({x}.shape[{d}]).flip(0), {y:same x})
{x:num r1+}.scatter({d:dim x}, {x}.argsort({d}, stable=True), {y:same x})
{x:num r1+}.scatter({d:dim x}, {x}.argsort({d}, stable=True)[:1], {n:number})
{x:num r1+}.scatter_add({d:dim x}, torch.zeros_like({x}, dtype=torch.int64), {y:same x})
{x:float r1+}.scatter_reduce({d:dim x}, torch.zeros_like({x}, dtype=torch.int64), {y:same x}, "amax")
{x:float r1+}.scatter_reduce({d:dim x}, {x}.argsort({d}, stable=True), {y:same x}, "mean")
{x:num r1+}.index_put(({i:index x 0},), torch.tensor({k:k}, dtype={x}.dtype))
{x:num r1+}.index_put((torch.tensor([0, 0]),), torch.tensor({k:k}, dtype={x}.dtype), accumulate=True)
{x:num r1+}.slice_scatter({x}[:1] * 2)
{x:num r2+}.select_scatter({x}[0] * 2, 0, 1)
{x:num r2}.diagonal_scatter({x}.diagonal() * 2)
{x:num r1+}.sort({d:dim x}, stable=True).values
{x:float r1+}.sort({d:dim x}, descending=True).indices
{x:num r1+}.argsort({d:dim x}, stable=True)
{x:float r1+}.topk(1, {d:dim x}).values
{x:float r1+}.topk(2).indices
{x:float r1+}.topk({n:size})[0]
{x:float r1+}.kthvalue(1, {d:dim x}).values
torch.searchsorted({x:float r1}.sort().values, {y:float})
torch.bucketize({x:float}, torch.tensor([-1.0, 0.0, 1.0], dtype={x}.dtype))
F.one_hot({x:float r1+}.argmax({d:dim x}), {x}.shape[{d}])
F.embedding({x:float r1+}.argmax(-1), {y:float r2}) if {y}.shape[0] >= {x}.shape[-1] else {x}
F.embedding({x:float r2}.argmax(-1), {x}.t())
torch.isin({x:int}, torch.tensor([0, 1]))
torch.histc({x:float}.float(), 3, -2, 2)
torch.tril_indices({x:any r2}.shape[0], 3)
torch.unravel_index({x:float r2}.argmax(), {x}.shape)[0]
"""

FACTORY = """
torch.arange({n:size})
torch.arange({n:size}, dtype=torch.float32)
torch.arange(0, {n:size}, 2)
torch.arange({n:size} - 1, -1, -1)
torch.zeros({n:size}, {x:num r1+}.shape[0])
torch.ones({x:any}.shape)
torch.ones({n:size}, dtype={t:dtype})
torch.full(({n:size}, 2), {m:number})
torch.full({x:any}.shape, {n:size})
torch.eye({n:size})
torch.linspace(0, 1, {n:size})
{x:any}.new_zeros({n:size})
{x:num}.new_full(({n:size},), {k:k})
{x:num}.new_ones({x}.shape)
{x:num}.new_tensor({k:k})
torch.tensor([1.0, {k:k}, 3.0])
torch.tensor({n:size})
torch.scalar_tensor({n:size}, dtype=torch.float32) * {x:float}
{x:num} * {n:size}
{x:float} / ({n:size} + 1)
{x:num} + {n:size} // 2
{x:num r1+}.sum() / max({n:size}, 1)
torch.ones({n:size}, {n}).tril()
torch.ones({n:size}, {n}).triu(1).bool()
torch.arange({x:num r1+}.shape[-1], dtype=torch.float32) * {x}
torch.arange({x:num r1+}.shape[{d:dim x}]).expand({k:k}, -1)
torch.arange({x:num r1+}.shape[0])[:, None] < {x}.shape[-1]
torch.hann_window({n:size} + 2)
"""

# Each of them writes to memory that others may see.
WRITES = """
{x:num}.add_({y:into x})
{x:num}.sub_({y:into x})
{x:num}.mul_({n:number})
{x:float}.mul_({y:into x})
{x:float}.div_(2)
{x:num} += {y:into x}
{x:num} *= {k:k}
{x:any}.copy_({y:into x})
{x:num}.fill_({k:k})
{x:any}.zero_()
{x:num}.clamp_(-1, 2)
{x:num}.neg_()
{x:float}.sin_()
{x:float}.sigmoid_()
{x:num}.relu_()
{x:num}.masked_fill_({m:mask x}, {n:number})
{x:float}.lerp_({y:same x}.clone(), 0.5)
{x:float}.addcmul_({y:same x}.clone(), {y}.clone(), value=0.5)
{x:num r1+}[{i:at x}] = {k:k}
{x:num r1+}[{i:at x}] += {k:k}
{x:num r1+}[{i:at x}] *= 2
{x:num r1+}[{i:at x}] = {x}[{i}] * 2
{x:num r1+}[{i:index x 0}] = {k:k}
{x:num r1+}[{i:index x 0}] += {k:k}
{x:num r2+}[:, {i:index x 1}] = {k:k}
{x:num r1+}[..., 1:] += {k:k}
{x:num r1+}[..., :1] = {n:number}
{x:num r1+}[::2] -= {k:k}
{x:num r1+}[1::2] = {k:k}
{x:num}[{x} > 0] = {k:k}
{x:num}[{m:mask x}] = {k:k}
{x:num r1+}[-1] = {x}[0]
{x:num r1+}[0] = {y:num r1+}[0].sum().to({x}.dtype)
{x:num r1+}.select({d:dim x}, {i:nth x d}).fill_({k:k})
{x:num r1+}.narrow({d:dim x}, 0, 1).add_({k:k})
{x:num r1+}.unsqueeze(0).mul_({k:k})
{x:num r2+}.transpose(0, 1).add_({k:k})
{x:num r2}.diagonal().fill_({k:k})
{x:num r2}.t()[0] += {k:k}
{x:num r1+}.flatten().add_({k:k})
{x:num r1+}.reshape(-1)[:1].fill_({k:k})
{x:num r1+}.view(-1)[0] += {k:k}
{x:num r1+}.ravel().mul_(2)
{x:num r1+}.contiguous().add_({k:k})
{x:num}.expand(2, *{x}.shape)[0].add_({k:k})
{x:num}.expand(2, *{x}.shape)[0] = {k:k}
{x:num r1+}.unfold({d:dim x}, 2, 2).add_({k:k})
{x:num r1+}.unfold({d:dim x}, 2, 1).select(-1, 0).add_({k:k})
{x:num r1+}.unbind({d:dim x})[0].add_({k:k})
{x:num r1+}.chunk(2, {d:dim x})[-1].mul_(2)
{x:num r1+}.split(1, {d:dim x})[0].fill_({k:k})
{x:complex}.real.add_(1)
{x:complex}.imag.mul_(2)
{x:complex}.mul_(2)
torch.view_as_real({x:complex})[..., 0] = {n:number}
{x:num r1+}.index_put_(({i:index x 0},), torch.tensor({k:k}, dtype={x}.dtype))
{x:num r1+}.index_put_((torch.tensor([0, 0]),), torch.tensor({k:k}, dtype={x}.dtype), accumulate=True)
{x:num r1+}.index_add_({d:dim x}, {i:index x d}[:1], {x}.narrow({d}, 0, 1).clone())
{x:num r1+}.index_fill_({d:dim x}, {i:index x d}, {k:k})
{x:num r1+}.index_copy_(0, {i:index x 0}[:1], {x}[:1].clone())
{x:num r1+}.scatter_({d:dim x}, {x}.argsort({d}, stable=True), {n:number})
{x:num r1+}.scatter_add_({d:dim x}, torch.zeros_like({x}, dtype=torch.int64), {y:same x}.clone())
{x:num}.masked_scatter_({m:mask x}, {x}.clone())
{x:float r1+}.cumsum_({d:dim x})
{x:num r2}.fill_diagonal_({k:k})
{x:num r2+}.triu_()
{x:num r2+}.tril_()
torch.add({x:num}, {k:k}, out={x})
torch.mul({x:float}, {y:into x}, out={x})
torch.clamp({x:num}, 0, 2, out={x})
F.relu({x:num}, inplace=True)
F.leaky_relu({x:float}, inplace=True)
F.dropout({x:float}, 0.5, training=False, inplace=True)
{x:num}.copy_({y:into x}).add_(1)
{x:bool}.logical_not_()
{x:bool r1+}[{i:at x}] = True
{x:num}.where({m:mask x}, {x} * 2).add_(1)
{x:num r2+}.swapaxes(0, 1)[0].zero_()
{x:num}.detach().add_({k:k})
{x:num r1+}.squeeze(0).add_({k:k})
{x:num r1+}.sort({d:dim x}, stable=True).values.add_(1)
torch._foreach_add_([{x:num}], {k:k})
"""

STRIDED_WRITES = """
{x:num r1+}.as_strided((2,), (1,)).fill_({k:k})
{x:num r1+}.as_strided((1,), (1,)).add_({k:k})
"""

# {o} is a new name. They may take several lines.
STATEMENTS = """
{o} = {x:num} + 1 if {q:cond} else {x} * 2
{o} = {x:num} + 1 if {q:cond} else {x} - 1
{o} = {x:float}.sum(0) if {q:cond} and {x}.dim() > 0 else {x}.mean()
{o} = {x:num} * (2 if {q:cond} else 3)
if {q:cond}: {x:num}.add_(1)
{o} = [{x:num}, {x} + 1, {x} * 2][{n:size} % 3]
{o} = {x:num} * {n:size} + {m:size}
{o} = {x:num r1+}[: max({n:size} - 1, 1)]
{o} = {x:num r1+}.reshape(-1)[: {n:size} // 2]
{o} = torch.cat([{x:num r1+}] * max({n:size} // 2, 1))
{o} = sum({x:num r1+}.unbind(-1))
{o} = {x:num r1+}.flatten().reshape({n:size}, -1) if {x}.numel() % max({n}, 1) == 0 and {n} > 0 else {x} * 2
{o} = cond({x:float}.sum() > 0, lambda a: a + 1, lambda a: a * 2, ({x},))
{o} = cond({x:num r1+}.shape[0] > 2, lambda a: a.sin(), lambda a: a.cos(), ({x}.float(),))
{o} = cond(({x:num} > 0).any(), lambda a, b: a + b, lambda a, b: a - b, ({x}, {y:same x}))
{o} = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 0.5), (torch.tensor(0), {x:float}))[1]
{o} = gp.map(lambda a: a.cumsum(0) if a.dim() else a * 2, {x:float r1+})
{o} = self.scale * {x:float}
self.count.add_({n:size}); {o} = {x:num} * 1 + self.count
self.total += {x:float}.float().sum().nan_to_num(); {o} = self.total * 1
self.table[1:] = self.table[:-1].clone() + {x:float}.float().mean().nan_to_num(); {o} = self.table * 1
self.table.t()[0] += {k:k}; {o} = self.table.sum(0)
{o} = self.part({x:float r1+ last4}.float())
{o} = self.linear({x:float r1+ last4}.float())
{o} = self.norm({x:float r1+ last4}.float())
{o} = self.batch({x:float r2 last4}.float())
{o} = self.gru({x:float r3 last4}.float())[0]
{o} = self.attend({x:float r3 last4}.float(), {x}.float(), {x}.float())[0]
with torch.no_grad(): {o} = {x:float} * 2
{o} = {x:num}; {o} = {o} + 1; {o} += {x}
{o} = [{x:num} + i for i in range(2)][-1]
{o} = torch.zeros_like({x:num}); {o}[...] = {x}
{o} = torch.zeros({n:size}, 4); {o}[:, 1] = {m:size}
{o} = torch.zeros({x:num r1+}.shape[0]); {o}[{x}.shape[0] // 2:] = 1
"""

# The sizes of what follows depend on data.
DATA = """
{o} = {x:num r1+}[{m:mask x}]
{o} = {x:num}.masked_select({m:mask x})
{o} = {x:num r1+}.nonzero()
{o} = ({x:float r1+} > 0).nonzero()[:, 0]
{o} = torch.argwhere({x:num r1+} > 0)
{o} = {x:num r1+}[{x}.reshape({x}.shape[0], -1).sum(-1) > 0]
{o} = torch.where({x:num r1+} > 0)[0]
{u} = int(({x:num} > 0).sum().item()); torch._check({u} >= 0); torch._check({u} <= 500); {o} = torch.ones({u})
{u} = ({x:num} > 0).sum().item(); torch._check({u} >= 0); torch._check({u} <= 500); {o} = torch.arange({u}) * 2
{u} = ({x:num r1+} > 0).any().long().item(); torch._check({u} >= 0); torch._check({u} <= {x}.shape[0]); {o} = {x}[:{u}]
{o} = torch.unique({x:int})
{o} = {x:num r1}.repeat_interleave(({x} > 0).long() + 1)
{o} = {x:num r1+}.masked_select({m:mask x}).sum()
{o} = {x:float r1+}[{m:mask x}].softmax(0)
{o} = torch.cat([{x:num r1+}[{m:mask x}], {x}.flatten()])
{o} = torch.zeros_like({x:num r1+}); {o}[{m:mask x}] = {x}[{m}] * 2
{o} = torch.bincount({x:int r1}.long().abs())
"""

CONDITIONS = """
{x:any r1+}.shape[{d:dim x}] == 1
{x:any r1+}.shape[{d:dim x}] == {k:k}
{x:any r1+}.shape[{d:dim x}] != 4
{x:any r1+}.shape[{d:dim x}] > {k:k}
{x:any r1+}.shape[{d:dim x}] >= 2
{x:any r1+}.shape[0] <= {y:any r1+}.shape[-1]
{x:any r1+}.shape[0] == {y:any r1+}.shape[0]
{x:any r1+}.size(0) % 2 == 0
{x:any r1+}.numel() > 6
{x:any r1+}.shape[-1] * 2 < {y:any r1+}.shape[0] + 3
{n:size} < {m:size}
{n:size} % 2 == {m:size} % 2
{x:any r1+}.shape == {y:any r1+}.shape
len({x:any r1+}) > 2
{x:any}.dim() == 2
{x:any}.is_contiguous()
{x:any}.dtype == torch.float32
not {x:any r1+}.shape[0]
max({n:size}, {m:size}) > 3
"""

SIZES = """
{x:any r1+}.shape[{d:dim x}]
{x:any r1+}.shape[0]
{x:any r1+}.size(-1)
len({x:any r1+})
{x:any r1+}.shape[0] + {k:k}
{x:any r1+}.shape[0] * {k:k}
({x:any r1+}.shape[-1] + 1) // 2
{x:any r1+}.shape[0] // {k:k}
{x:any r1+}.shape[0] % 3
{x:any r1+}.shape[0] + {y:any r1+}.shape[0]
min({x:any r1+}.shape[0], {y:any r1+}.shape[-1])
max({x:any r1+}.shape[0], {k:k})
{x:any}.numel()
{x:any}.dim()
{k:k}
"""


def rows(table: str) -> list[str]:
    return [line for line in table.splitlines() if line]


# How often a statement comes from a table: the first are expressions, whose value gets a name.
EXPRESSIONS = {
    "pointwise": (rows(POINTWISE), 24),
    "reduce": (rows(REDUCE), 14),
    "matmul": (rows(MATMUL), 6),
    "spatial": (rows(SPATIAL), 6),
    "shape": (rows(SHAPE), 10),
    "views": (rows(VIEWS), 23),
    "strided": (rows(STRIDED), 1),
    "complex": (rows(COMPLEX), 3),
    "index": (rows(INDEX), 10),
    "factory": (rows(FACTORY), 8),
}
OTHERS = {
    "writes": (rows(WRITES), 21),
    "strided writes": (rows(STRIDED_WRITES), 1),
    "statements": (rows(STATEMENTS), 10),
    "data": (rows(DATA), 4),
}
SIZE_ROWS, CONDITION_ROWS = rows(SIZES), rows(CONDITIONS)
