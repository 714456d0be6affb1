// The seam: everything that a kernel body asks of the machine.
//
// nvcc takes the functions from device_ptx.h, one PTX instruction each; the emulator's build takes
// them from test/emulator/device_emulated.h, which runs the same bodies on the host and checks
// every access. Bodies include this header and csrc/core only, and keep to these rules:
//   - Memory is reached through GlobalPtr and SharedPtr, which have no operator*.
//   - Warp collectives are for all 32 lanes, block collectives for all threads; trip counts around
//     them are uniform.
//   - No threadIdx, asm, intrinsics, __shared__, statics, exceptions, recursion or destructors.
//
// GlobalPtr<T>         + n elements (int64); T const: read only; false when null
// SharedPtr            + bytes, ^ bits
// shared_region        a named part of the block's dynamic shared memory, 1024-byte aligned at 0
// thread_index, block_index_x, block_index_y, grid_size_x
// block_sync           barrier of the block, orders shared memory
// block_any            block_sync that also tells every thread whether any thread's condition holds
// warp_sync            barrier of the warp, orders shared memory
// warp_any             whether any lane's condition holds
// shuffle_xor          value of lane (own lane ^ mask)
// ldmatrix_x4          four 8x8 matrices of 16-bit numbers; row r of matrix m from lane 8 * m + r,
//                      16 bytes, 16-byte aligned; lane l gets row l / 4, columns l % 4 * 2 and + 1
// ldmatrix_x4_trans    the same, each matrix transposed
// mma_m16n8k16<E>      d += a b with fp32 d; fragments as in the PTX manual, section "mma.m16n8k16"
// cp_async_16          copies `bytes` (0 to 16) of 16 to shared memory and clears the rest, in the
//                      background; both addresses 16-byte aligned
// cp_async_commit      closes a group of copies
// cp_async_wait<N>     waits until at most N of the thread's groups are in flight; what other
//                      threads copied is there after their wait and a barrier
// load_global<V>, store_global, load_shared<V>, store_shared
//                      one access of sizeof(V): 4, 8 or 16 bytes, global also 1 and 2; aligned to
//                      it
// opaque               the argument, of which the compiler knows nothing: what is computed from it
//                      inside a loop is not held in registers before it
// exp2_approx          2^x to about 2 ulp, 0 where that is denormal
// exponential, logarithm, fused_multiply_add, maximum (of a NaN and a number: the number)
// rounded_product      a * b by itself: a compiler may round other products together with the sum
//                      that they are part of
// to_float, from_float<E>, pack2<E>(low, high), unpack2<E>
#pragma once

#if defined(__CUDACC__)
#include "device_ptx.h"
#else
#include "emulator/device_emulated.h"
#endif
