"""What the CUDA kernels cannot do is refused for fake tensors, too: no GPU is needed to know."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import dtype_id, message

ops = torch.ops.fused_attention
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
PREFIX = "fused_attention::attention: expected "
D_RULE = f"{PREFIX}a head dim D of at most 576 .* query of shape \\[1, 2, 4, 577\\] \\(dtype "
DV_RULE = f"{PREFIX}a head dim Dv of at most 576 .* gradient .* value of shape \\[1, 2, 4, 577\\]"


def make_inputs(dim, dim_v, dtype=torch.bfloat16, device="cuda", requires_grad=False):
    options = {"dtype": dtype, "device": device, "requires_grad": requires_grad}
    return [torch.empty(1, 2, 4, d, **options) for d in (dim, dim, dim_v)]


def backward(query, key, value):
    output = torch.empty_like(value)
    logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
    rng_state = query.new_empty(0, dtype=torch.long)
    options = (None, 0.0, False, [True] * 3 + [False] * 3)
    inputs = (query, key, value, output, logsumexp, rng_state)
    return ops.attention_backward(output, None, *inputs, *options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=dtype_id)
def test_head_dim_without_a_backward_kernel_is_known_in_the_forward_call(dtype):
    with FakeTensorMode():
        assert re.match(D_RULE, message(ops.attention, *make_inputs(577, 64, dtype)))
        inputs = make_inputs(64, 577, dtype, requires_grad=True)
        assert re.match(DV_RULE, message(ops.attention, *inputs))
        with torch.no_grad():
            assert ops.attention(*inputs).shape == (1, 2, 4, 577)
        assert ops.attention(*make_inputs(576, 576, dtype, requires_grad=True)).requires_grad
        for others in ({"dtype": torch.float32}, {"device": "cpu"}, {"device": "meta"}):
            inputs = make_inputs(577, 577, **others, requires_grad=True)
            assert ops.attention(*inputs).requires_grad


@pytest.mark.parametrize("mode", MODES)
def test_head_dim_without_a_kernel_is_known_to_fake_tensors_in_every_mode(mode):
    with mode(), FakeTensorMode():
        assert re.match(D_RULE, message(ops.attention, *make_inputs(577, 64)))
        assert re.match(D_RULE, message(backward, *make_inputs(577, 64)))
        assert re.match(DV_RULE, message(backward, *make_inputs(64, 577)))
        assert ops.attention(*make_inputs(576, 577)).shape == (1, 2, 4, 577)
        assert backward(*make_inputs(576, 576))[2].shape == (1, 2, 4, 576)
        for device in ("cpu", "meta"):
            inputs = make_inputs(577, 577, device=device)
            assert ops.attention(*inputs).device.type == device
            assert backward(*inputs)[2].shape == (1, 2, 4, 577)


@pytest.mark.parametrize("mode", MODES)
def test_head_dim_without_a_kernel_is_known_to_the_compiler(mode):
    torch.compiler.reset()
    compiled = torch.compile(ops.attention, backend="eager", fullgraph=True, dynamic=False)
    with mode(), FakeTensorMode():
        with pytest.raises(RuntimeError, match=D_RULE):
            compiled(*make_inputs(577, 64))
        assert compiled(*make_inputs(576, 64)).shape == (1, 2, 4, 64)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Sq", "Sk", "the number of query heads", "D", "Dv"])
def test_lengths_that_the_cuda_kernels_cannot_count_are_refused(name, mode):
    sizes = {"Sq": 4, "Sk": 4, "the number of query heads": 1, "D": 8, "Dv": 8}
    sizes[name] = 2**29 + 1
    seq_q, seq_k, heads, dim, dim_v = sizes.values()
    shapes = [(1, heads, seq_q, dim), (1, 1, seq_k, dim), (1, 1, seq_k, dim_v)]
    with mode(), FakeTensorMode():
        text = message(ops.attention, *(torch.empty(s, device="cuda") for s in shapes))
        assert text == f"{PREFIX}{name} of at most 536870912 on CUDA, but got 536870913"
        ops.attention(*(torch.empty(s, device="cpu") for s in shapes))
