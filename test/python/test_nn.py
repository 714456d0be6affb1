"""nn.Attention: counts and numbers of the facts page, equalities between groupings, RoPE, state."""

import math

import pytest
import torch
import torch.nn.functional as F

from fused_attention.nn import Attention, rotate


def parameters(module):
    return {name: p.numel() for name, p in module.named_parameters()}


@pytest.mark.parametrize("heads", [8, 1])
def test_projections_of_width_512_have_1048576_parameters(heads):
    assert sum(parameters(Attention(512, heads, bias=False)).values()) == 1_048_576


def test_llama_3_70b_layer_has_the_published_counts():
    grouped = parameters(Attention(8192, 64, 8, bias=False, device="meta"))
    assert grouped == {
        "q_proj.weight": 67_108_864,
        "k_proj.weight": 8_388_608,
        "v_proj.weight": 8_388_608,
        "o_proj.weight": 67_108_864,
    }
    assert sum(grouped.values()) == 150_994_944
    full = Attention(8192, 64, 64, bias=False, device="meta")
    assert sum(parameters(full).values()) == 268_435_456


def test_bias_and_head_dim_change_the_counts_as_they_say():
    with_bias = parameters(Attention(32, 4, 2, bias=True, head_dim=24))
    assert with_bias["q_proj.weight"] == 32 * 96
    assert with_bias["q_proj.bias"] == 96
    assert with_bias["k_proj.bias"] == with_bias["v_proj.bias"] == 48
    assert with_bias["o_proj.weight"] == 96 * 32
    assert with_bias["o_proj.bias"] == 32
    assert not [n for n in parameters(Attention(32, 4, bias=False)) if "bias" in n]


def formula(module, x, attn_mask=None):
    """The layer by its definition: projections, slices, softmax per head, concatenation, W_O."""

    def heads(t, count):
        return torch.stack(t.split(module.head_dim, -1), -3).repeat_interleave(
            module.num_heads // count, -3
        )

    query = heads(module.q_proj(x), module.num_heads)
    key = heads(module.k_proj(x), module.num_kv_heads)
    value = heads(module.v_proj(x), module.num_kv_heads)
    if module.rope:
        query, key = rotated(query), rotated(key)
    scores = query @ key.transpose(-1, -2) / math.sqrt(module.head_dim)
    if module.causal:
        seq = x.size(-2)
        scores = scores.masked_fill(~torch.ones(seq, seq, dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    out = scores.softmax(-1) @ value
    return module.o_proj(torch.cat(out.unbind(-3), -1))


def rotated(t, theta=10000.0):
    """Rotary embedding in complex numbers: pair (c, c + D/2) times exp(i p theta^(-2c/D))."""
    half = t.size(-1) // 2
    number = torch.complex(t[..., :half].double(), t[..., half:].double())
    speed = torch.tensor(
        [theta ** (-2.0 * c / t.size(-1)) for c in range(half)], dtype=torch.float64
    )
    position = torch.arange(t.size(-2), dtype=torch.float64).unsqueeze(-1)
    number = number * torch.polar(torch.ones_like(position * speed), position * speed)
    return torch.cat((number.real, number.imag), -1).to(t.dtype)


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_and_its_gradients_equal_the_definition(bias, kv_heads, causal, rope):
    module = Attention(24, 4, kv_heads, bias=bias, causal=causal, rope=rope).double()
    x = torch.randn(2, 9, 24, dtype=torch.float64, requires_grad=True)
    wanted = [x, *module.parameters()]
    seed = torch.randn(2, 9, 24, dtype=torch.float64)
    mine, theirs = module(x), formula(module, x)
    assert mine.shape == x.shape
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(mine, wanted, seed), torch.autograd.grad(theirs, wanted, seed)
    )


def test_mask_reaches_the_operator():
    module = Attention(16, 4, 2).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    mask = torch.rand(2, 1, 7, 7) < 0.6
    mask[..., 0] = True
    torch.testing.assert_close(module(x, mask), formula(module, x, mask))


def test_layer_equals_torch_multihead_attention():
    module = Attention(32, 4, bias=True)
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        parts = [module.q_proj, module.k_proj, module.v_proj]
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
        theirs.out_proj.load_state_dict(module.o_proj.state_dict())
    x = torch.randn(3, 11, 32)
    torch.testing.assert_close(
        module(x), theirs(x, x, x, need_weights=False)[0], atol=1e-5, rtol=1e-5
    )


def test_one_head_equals_plain_attention():
    module = Attention(16, 1, bias=False)
    x = torch.randn(2, 6, 16)
    q, k, v = module.q_proj(x), module.k_proj(x), module.v_proj(x)
    want = module.o_proj((q @ k.transpose(-1, -2) / 4.0).softmax(-1) @ v)
    torch.testing.assert_close(module(x), want, atol=1e-6, rtol=1e-5)


def test_grouped_attention_with_as_many_groups_as_heads_equals_multi_head():
    grouped, multi = Attention(32, 4, 4, causal=True), Attention(32, 4, causal=True)
    multi.load_state_dict(grouped.state_dict())
    x = torch.randn(2, 9, 32)
    assert torch.equal(grouped(x), multi(x))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_attention_equals_multi_head_with_repeated_projections(kv_heads):
    grouped, multi = Attention(32, 4, kv_heads, rope=True), Attention(32, 4, rope=True)
    state = grouped.state_dict()
    for name in ("k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias"):
        heads = state[name].unflatten(0, (kv_heads, 8))
        state[name] = heads.repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
    multi.load_state_dict(state)
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(grouped(x), multi(x), atol=1e-6, rtol=1e-5)


# The toy layer of the facts page: weights of 3 tokens in 2 heads of 2.
HEAD_0_FIRST, HEAD_1_FIRST = [0.529, 0.287, 0.184], [0.339, 0.313, 0.348]
HEAD_0_CAUSAL_SECOND = [0.4236, 0.5764]


def toy_weights(is_causal):
    import fused_attention

    # Keys at (0,0), (1,0), (0,1): a query's two channels are its scores against the last two.
    key = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).expand(1, 2, 3, 2)

    def row(weights):
        logits = torch.tensor(weights).log() * math.sqrt(2.0)
        return logits[1:] - logits[0]

    second = row([*HEAD_0_CAUSAL_SECOND, 0.3])
    third = torch.tensor([0.3, -0.2])
    query = torch.stack(
        [
            torch.stack([row(HEAD_0_FIRST), second, third]),
            torch.stack([row(HEAD_1_FIRST), second, third]),
        ]
    )
    value = torch.eye(3).expand(1, 2, 3, 3)  # the output is the weights
    return fused_attention.attention(query.unsqueeze(0), key, value, is_causal=is_causal)[0]


def test_toy_layer_weights_are_those_of_the_facts():
    full, causal = toy_weights(False), toy_weights(True)
    torch.testing.assert_close(full[0, 0], torch.tensor(HEAD_0_FIRST), atol=1e-5, rtol=0)
    torch.testing.assert_close(full[1, 0], torch.tensor(HEAD_1_FIRST), atol=1e-5, rtol=0)
    assert torch.equal(causal[0, 0], torch.tensor([1.0, 0.0, 0.0]))
    want = torch.tensor([*HEAD_0_CAUSAL_SECOND, 0.0])
    torch.testing.assert_close(causal[0, 1], want, atol=1e-5, rtol=0)
    torch.testing.assert_close(causal[:, 2], full[:, 2])
    torch.testing.assert_close(full.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(causal.sum(-1), torch.ones(2, 3))


def test_module_gives_the_numbers_of_the_cpp_module():
    # test/cpp/nn/attention_module_test.cpp holds the same numbers.
    module = Attention(12, 4, 2, bias=True, head_dim=6, causal=True, rope=True).double()
    with torch.no_grad():
        for p, parameter in enumerate(module.parameters()):
            n = torch.arange(parameter.numel(), dtype=torch.float64)
            parameter.copy_((0.3 * torch.cos(0.7 * n + p)).view_as(parameter))
    x = torch.sin(0.3 * torch.arange(120, dtype=torch.float64)).view(2, 5, 12)
    out = module(x)
    (grad,) = torch.autograd.grad(out.square().sum(), module.k_proj.weight)
    got = torch.stack(
        [out[0, 0, 0], out[0, 4, 11], out[1, 2, 5], grad[0, 0], grad[11, 11], grad[5, 3]]
    )
    want = [0.203574913868, -0.015018999615, 0.102618487289]
    want += [0.018445619465, 0.182760105554, 0.045454166157]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), atol=1e-11, rtol=0)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_block_keeps_the_shape_and_trains(pre_norm):
    torch.manual_seed(0)
    attention, norms = (
        Attention(32, 4, 2, causal=True, rope=True),
        [torch.nn.LayerNorm(32) for _ in "ab"],
    )
    mlp = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    model = torch.nn.ModuleList([attention, *norms, mlp])

    def block(x):
        if pre_norm:
            x = x + attention(norms[0](x))
            return x + mlp(norms[1](x))
        x = norms[0](x + attention(x))
        return norms[1](x + mlp(x))

    x, target = torch.randn(4, 12, 32), torch.randn(4, 12, 32)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        out = block(x)
        assert out.shape == x.shape
        loss = F.mse_loss(out, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_causal_layer_does_not_look_ahead():
    module = Attention(32, 4, 2, causal=True, rope=True)
    x = torch.randn(1, 20, 32)
    changed = x.clone()
    changed[:, 13:] = torch.randn(1, 7, 32)
    assert torch.equal(module(x)[:, :13], module(changed)[:, :13])


def test_rotate_equals_the_complex_formula_and_keeps_lengths():
    t = torch.randn(2, 17, 3, 8)
    got = rotate(t)
    torch.testing.assert_close(
        got, rotated(t.transpose(1, 2)).transpose(1, 2), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(got.norm(dim=-1), t.norm(dim=-1))
    torch.testing.assert_close(rotate(t[:, 5:], start=5), got[:, 5:], atol=1e-6, rtol=1e-5)
    assert torch.equal(got[:, 0], t[:, 0])


def test_rotated_scores_depend_on_the_distance_alone():
    q, k = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    qs, ks = (rotate(t.expand(1, 30, 1, 8))[0, :, 0] for t in (q, k))
    scores = qs @ ks.T
    for shift in (1, 7, 19):
        torch.testing.assert_close(scores[shift:, shift:], scores[:-shift, :-shift])


def test_state_survives_a_file_and_names_the_projections(tmp_path):
    first, second = (Attention(24, 4, 2, bias=True, causal=True) for _ in range(2))
    names = [f"{p}_proj.{kind}" for p in "qkvo" for kind in ("weight", "bias")]
    assert list(first.state_dict()) == names
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    x = torch.randn(2, 5, 24)
    assert torch.equal(first(x), second(x))


def test_extra_leading_dimensions_and_a_single_sequence_work():
    module = Attention(16, 4, 2, causal=True)
    x = torch.randn(2, 3, 7, 16)
    got = module(x)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(got[i, j], module(x[i, j]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((32, 4, 3), {}), ((30, 4), {}), ((32, 0), {}), ((32, 4, 0), {}), ((12, 4), {"rope": True})],
    ids=str,
)
def test_options_that_do_not_fit_together_are_refused(arguments, options):
    with pytest.raises((ValueError, RuntimeError), match=r"expected .*but got"):
        Attention(*arguments, **options)


def test_representation_names_the_options():
    text = repr(Attention(32, 4, 2, causal=True))
    assert "num_kv_heads=2" in text
    assert "causal=True" in text
