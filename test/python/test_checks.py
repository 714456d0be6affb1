"""Every rule about the arguments: one message, the same on the CPU, meta and fake routes."""

import math
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import Shape, make, message

ops = torch.ops.fused_attention
SHAPE = Shape(2, 4, 2, 3, 5, 8, 8)
PREFIX = "fused_attention::attention: expected "


def t(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


Q, K, V = t(2, 4, 3, 8), t(2, 2, 5, 8), t(2, 2, 5, 8)
SHAPE_RULES = {
    "heads not a multiple": ((t(2, 3, 3, 8), K, V), {}, r"multiple.*Hq = 3 and Hkv = 2"),
    "more key heads than query heads": (
        (t(2, 2, 3, 8), t(2, 4, 5, 8), t(2, 4, 5, 8)),
        {},
        r"multiple.*Hq = 2 and Hkv = 4",
    ),
    "no key heads": (
        (t(2, 5, 3, 8), t(2, 0, 5, 8), t(2, 0, 5, 8)),
        {},
        r"multiple.*Hq = 5 and Hkv = 0",
    ),
    "value heads differ from key heads": (
        (Q, K, t(2, 1, 5, 8)),
        {},
        r"number of heads.*value of shape \[2, 1, 5, 8\]",
    ),
    "head dims of query and key differ": (
        (Q, t(2, 2, 5, 7), V),
        {},
        r"head dim.*key of shape \[2, 2, 5, 7\] \(dtype Float\)",
    ),
    "head dim zero": (
        (t(2, 4, 3, 0), t(2, 2, 5, 0), V),
        {},
        r"head dim D of at least 1.*query of shape \[2, 4, 3, 0\]",
    ),
    "value head dim zero": (
        (Q, K, t(2, 2, 5, 0)),
        {},
        r"head dim Dv of at least 1.*value of shape \[2, 2, 5, 0\]",
    ),
    "lengths of key and value differ": (
        (Q, K, t(2, 2, 6, 8)),
        {},
        r"length.*value of shape \[2, 2, 6, 8\]",
    ),
    "batch of key": (
        (Q, t(3, 2, 5, 8), V),
        {},
        r"key to have the batch size of query.*key of shape \[3, 2, 5, 8\]",
    ),
    "batch of value": ((Q, K, t(3, 2, 5, 8)), {}, r"value to have the batch size of query"),
    "query of batch one": ((t(1, 4, 3, 8), K, V), {}, r"batch size of query"),
    "dtypes differ": (
        (Q, K.half(), V.half()),
        {},
        r"same dtype.*query.dtype: .*[Ff]loat.*key.dtype: .*[Hh]alf.*value.dtype: .*[Hh]alf",
    ),
    "integers": (
        (Q.int(), K.int(), V.int()),
        {},
        r"float32, float64, bfloat16 or float16.*query of shape .*dtype Int",
    ),
    "complex": ((Q.cfloat(), K.cfloat(), V.cfloat()), {}, r"float32, float64, bfloat16 or float16"),
    "mask that does not broadcast": (
        (Q, K, V, t(3, 4)),
        {},
        r"attn_mask to broadcast to \(B, Hq, Sq, Sk\).*attn_mask of shape \[3, 4\]",
    ),
    "mask of batch, Sq, Sk": ((Q, K, V, t(2, 3, 5)), {}, r"attn_mask.*\[2, 3, 5\].*unsqueeze\(1\)"),
    "mask of 5 dims": ((Q, K, V, t(1, 1, 1, 3, 5)), {}, r"attn_mask.*\[1, 1, 1, 3, 5\]"),
    "mask wider than the keys": ((Q, K, V, t(6)), {}, r"attn_mask.*\[6\]"),
    "mask of more heads": ((Q, K, V, t(2, 8, 3, 5)), {}, r"attn_mask.*\[2, 8, 3, 5\]"),
    "mask of integers": (
        (Q, K, V, t(3, 5, dtype=torch.int64)),
        {},
        r"attn_mask to be bool, .*dtype Long",
    ),
}
OPTION_RULES = {
    "window below -1": ({"window_size": [-2, 0]}, r"window_size to be at least -1.*\(-2, 0\)"),
    "right window below -1": (
        {"window_size": [0, -5]},
        r"window_size to be at least -1.*\(0, -5\)",
    ),
    "scale of infinity": ({"scale": math.inf}, r"scale to be finite.*inf"),
    "scale of NaN": ({"scale": math.nan}, r"scale to be finite.*nan"),
    "scale beyond float32": ({"scale": -1e39}, r"scale.* at most 1e\+38.*float32.* -1e\+39"),
    "negative dropout": ({"dropout_p": -0.1}, r"dropout_p to be between 0 and 1.*-0\.1"),
    "dropout above one": ({"dropout_p": 1.5}, r"dropout_p to be between 0 and 1.*1\.5"),
    "dropout of NaN": ({"dropout_p": math.nan}, r"dropout_p to be between 0 and 1.*nan"),
}
LATER = {
    "dropout": ({"dropout_p": 0.5}, "dropout_p"),
    "softcap": ({"softcap": 30.0}, "softcap"),
    "sinks": ({"sinks": torch.zeros(4)}, "sinks"),
    "alibi": ({"alibi_slopes": torch.zeros(4)}, "alibi_slopes"),
    "used lengths": ({"seqused_k": torch.ones(2, dtype=torch.int32)}, "seqused_k"),
}
RULES = {
    **SHAPE_RULES,
    **{name: ((Q, K, V), options, pattern) for name, (options, pattern) in OPTION_RULES.items()},
}


def on_meta(args):
    return [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["attention", "attention_with_lse", "attention_forward"])
def test_broken_rule_gives_its_message_on_every_route(rule, name):
    args, options, pattern = RULES[rule]
    call = getattr(ops, name)
    text = message(call, *args, **options)
    assert re.search(f"^{PREFIX}.*{pattern}", text), text
    assert ", but got " in text
    assert message(call, *on_meta(args), **options) == text
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(a) for a in args]
        assert message(call, *fakes, **options) == text


@pytest.mark.parametrize("rule", RULES)
def test_broken_rule_gives_its_message_where_gradients_are_recorded(rule):
    args, options, pattern = RULES[rule]
    inputs = [a.clone().requires_grad_(a.is_floating_point()) for a in args[:3]] + list(args[3:])
    text = message(ops.attention, *inputs, **options)
    assert re.search(f"^{PREFIX}.*{pattern}", text), text


def backward_arguments(device="cpu"):
    x = make(SHAPE)
    out, logsumexp, rng = ops.attention_forward(*x.qkv)
    arguments = {
        "grad_output": x.grad_output,
        "grad_logsumexp": x.grad_logsumexp,
        "query": x.query,
        "key": x.key,
        "value": x.value,
        "output": out,
        "logsumexp": logsumexp,
        "rng_state": rng,
        "attn_mask": None,
        "dropout_p": 0.0,
        "is_causal": False,
        "grad_input_mask": [True] * 3 + [False] * 3,
    }
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


BACKWARD_RULES = {
    "grad_output": t(2, 4, 3, 7),
    "output": t(2, 4, 4, 8),
    "logsumexp": t(2, 4, 4),
    "grad_logsumexp": t(2, 4, 3, 1),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", BACKWARD_RULES)
def test_backward_operator_checks_its_own_operands(name, device):
    arguments = backward_arguments(device)
    ops.attention_backward(**arguments)
    wrong = BACKWARD_RULES[name].to(device)
    shape = re.escape(str(list(wrong.shape)))
    pattern = f"^fused_attention::attention: expected {name} .*but got {name} of shape {shape}"
    assert re.search(pattern, message(ops.attention_backward, **{**arguments, name: wrong}))
    wrong = arguments[name].to(torch.float16)
    pattern = f"^fused_attention::attention: expected {name} .*dtype Half"
    assert re.search(pattern, message(ops.attention_backward, **{**arguments, name: wrong}))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("rule", [n for n in SHAPE_RULES if "mask" not in n])
def test_backward_operator_checks_what_forward_checks(rule, device):
    (query, key, value), options, pattern = SHAPE_RULES[rule]
    arguments = backward_arguments(device)
    arguments.update(query=query.to(device), key=key.to(device), value=value.to(device), **options)
    text = message(ops.attention_backward, **arguments)
    assert re.search(f"^{PREFIX}.*{pattern}", text), text


@pytest.mark.parametrize("position", [3, 4, 5])
def test_gradients_that_do_not_exist_yet_are_refused(position):
    need = [True] * 3 + [False] * 3
    need[position] = True
    text = message(ops.attention_backward, **{**backward_arguments(), "grad_input_mask": need})
    assert "not supported yet" in text


@pytest.mark.parametrize("name", LATER)
def test_argument_of_a_later_version_is_refused_not_ignored(name):
    options, named = LATER[name]
    accepted = {a.name for a in ops.attention.default._schema.arguments}
    for device in ("cpu", "meta"):
        inputs = on_meta((Q, K, V)) if device == "meta" else (Q, K, V)
        if named in accepted:
            assert re.search(
                f"{named} .*not supported yet", message(ops.attention, *inputs, **options)
            )
        else:
            with pytest.raises((RuntimeError, TypeError), match=named):
                ops.attention(*inputs, **options)


def test_devices_that_differ_are_named():
    text = message(ops.attention, Q, K.to("meta"), V)
    assert re.search("same device.*query.device: cpu key.device: meta", text), text
    text = message(ops.attention, Q, K, V, torch.ones(3, 5, device="meta"))
    assert "attn_mask" in text
    assert "device" in text


def test_sparse_and_nested_tensors_are_refused():
    assert "query" in message(ops.attention, Q.to_sparse(), K, V)
    nested = torch.nested.nested_tensor([t(4, 3, 8), t(4, 2, 8)])
    with pytest.raises((RuntimeError, NotImplementedError)):
        ops.attention(nested, nested, nested)


def test_first_six_positional_arguments_are_those_of_torch():
    theirs = torch.ops.aten.scaled_dot_product_attention.default._schema.arguments
    mine = ops.attention.default._schema.arguments
    for a, b in zip(theirs[:6], mine[:6], strict=True):
        assert (a.name, str(a.type), a.default_value) == (b.name, str(b.type), b.default_value)
    keywords = {a.name for a in mine if a.kwarg_only}
    assert {"scale", "enable_gqa", "diagonal_offset", "window_size"} <= keywords


def test_failed_call_leaves_its_inputs_untouched_and_the_next_call_works():
    x = make(SHAPE)
    copies = [a.clone() for a in x.qkv]
    message(ops.attention, *x.qkv, window_size=[-3, 0])
    assert all(torch.equal(a, b) for a, b in zip(x.qkv, copies, strict=True))
    assert ops.attention(*x.qkv).isfinite().all()
