"""The ledger of a GPU's program, counted by hand; no compiler is needed."""

from collections import Counter

import pytest

from tests.support.gpu_ledger import Product, ledger, products

PROGRAM = """HloModule jit_f

%fused_add (a: f32[8,16], b: f32[8,16]) -> f32[8,16] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[8,16]{1,0} parameter(1)
  ROOT %sum = f32[8,16]{1,0} add(%a, %b)
}

%fused_update (stack: f32[4,8,16], row: f32[8,16], at: s32[]) -> f32[4,8,16] {
  %stack = f32[4,8,16]{2,1,0} parameter(0)
  %row = f32[8,16]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  %entry = f32[1,8,16]{2,1,0} bitcast(%row)
  ROOT %updated = f32[4,8,16]{2,1,0} dynamic-update-slice(%stack, %entry, %at, %zero, %zero)
}

%fused_slice (stack: f32[4,8,16], at: s32[]) -> f32[16,8] {
  %stack = f32[4,8,16]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %entry = f32[1,8,16]{2,1,0} dynamic-slice(%stack, %at, %zero, %zero), dynamic_slice_sizes={1,8,16}
  %row = f32[8,16]{1,0} bitcast(%entry)
  ROOT %turned = f32[16,8]{1,0} transpose(%row), dimensions={1,0}
}

%body (state: (s32[], f32[8,16], f32[4,8,16])) -> (s32[], f32[8,16], f32[4,8,16]) {
  %state = (s32[], f32[8,16]{1,0}, f32[4,8,16]{2,1,0}) parameter(0)
  %at = s32[] get-tuple-element(%state), index=0
  %row = f32[8,16]{1,0} get-tuple-element(%state), index=1
  %stack = f32[4,8,16]{2,1,0} get-tuple-element(%state), index=2
  %next = f32[8,16]{1,0} fusion(%row, %row), kind=kLoop, calls=%fused_add
  %start = ((f32[4,8,16]{2,1,0}, s32[]), f32[4,8,16]{2,1,0}) fusion-start(%stack, %next, %at), calls=%fused_update
  %done = f32[4,8,16]{2,1,0} fusion-done(%start)
  ROOT %result = (s32[], f32[8,16]{1,0}, f32[4,8,16]{2,1,0}) tuple(%at, %next, %done)
}

%condition (state: (s32[], f32[8,16], f32[4,8,16])) -> pred[] {
  %state = (s32[], f32[8,16]{1,0}, f32[4,8,16]{2,1,0}) parameter(0)
  ROOT %always = pred[] constant(true)
}

%small (x: f32[8,16]) -> f32[8,16] {
  ROOT %x = f32[8,16]{1,0} parameter(0)
}

%large (x: f32[8,16]) -> f32[8,16] {
  %x = f32[8,16]{1,0} parameter(0)
  ROOT %copied = f32[8,16]{1,0} copy(%x)
}

ENTRY %main (x: f32[8,16], stack: f32[4,8,16], which: pred[], kernel: f32[16,32]) -> f32[8,32] {
  %x = f32[8,16]{1,0} parameter(0)
  %stack = f32[4,8,16]{2,1,0} parameter(1)
  %which = pred[] parameter(2)
  %kernel = f32[16,32]{1,0} parameter(3)
  %at = s32[] constant(0)
  %before = (s32[], f32[8,16]{1,0}, f32[4,8,16]{2,1,0}) tuple(%at, %x, %stack)
  %loop = (s32[], f32[8,16]{1,0}, f32[4,8,16]{2,1,0}) while(%before), condition=%condition, body=%body, FOUR_TIMES
  %rows = f32[4,8,16]{2,1,0} get-tuple-element(%loop), index=2
  %turned = f32[16,8]{1,0} fusion(%rows, %at), kind=kInput, calls=%fused_slice
  %chosen = f32[8,16]{1,0} conditional(%which, %x, %x), true_computation=%small, false_computation=%large
  %call = (f32[8,32]{1,0}, s8[4096]{0}) custom-call(%chosen, %kernel), custom_call_target="__cublas$lt$matmul", QUARTER
  ROOT %product = f32[8,32]{1,0} get-tuple-element(%call), index=0
}
""".replace("FOUR_TIMES", 'backend_config={"known_trip_count":{"n":"4"}}').replace(
    "QUARTER", 'backend_config={"gemm_backend_config":{"alpha_real":0.25,"alpha_imag":0,"beta":0,"epilogue":"BIAS"}}'
)
ROW, KERNEL, OUTPUT, NUMBER = 8 * 16 * 4, 16 * 32 * 4, 8 * 32 * 4, 4


def test_every_launch_counts_as_often_as_it_runs_with_the_bytes_that_it_moves():
    counts = ledger(PROGRAM)
    assert counts.launches == Counter({"fusion": 4 * 2 + 1, "copy": 1, "__cublas$lt$matmul": 1})
    loop = 4 * (2 * ROW + ROW + NUMBER)  # the sum reads a row twice, the update one and where it goes
    assert counts.read == loop + (ROW + NUMBER) + ROW + (ROW + KERNEL)
    assert counts.written == 4 * 2 * ROW + ROW + ROW + OUTPUT
    assert counts.moved == counts.read + counts.written
    assert (counts.transposes, counts.conditionals) == (1, 1)


def test_a_transpose_of_axes_of_one_entry_moves_nothing():
    flat = PROGRAM.replace("f32[16,8]{1,0} transpose", "f32[1,128]{1,0} transpose")
    assert ledger(flat).transposes == 0


def test_a_product_is_told_with_its_factor_and_its_epilogue():
    assert products(PROGRAM) == [Product(0.25, "BIAS")]


def test_a_loop_of_unknown_length_is_refused():
    with pytest.raises(ValueError, match="a loop must have a known number of iterations, got loop"):
        ledger(PROGRAM.replace("known_trip_count", "unknown"))
