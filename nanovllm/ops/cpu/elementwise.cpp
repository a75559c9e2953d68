#include "nanovllm/ops/cpu/elementwise.h"

#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/attention.h"
#include "nanovllm/ops/cpu/elementwise_kernels.h"
#include "nanovllm/ops/cpu/parallel.h"

namespace nanovllm::cpu {

namespace {

const ElementwiseKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return plain::kElementwiseKernels;
    case Isa::kAvx2:
      return avx2::kElementwiseKernels;
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
      return avx512::kElementwiseKernels;
  }
  return plain::kElementwiseKernels;
}

/// Position of a float dtype in the kernels' tables.
size_t index_of(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "{} is no dtype of a model", dtype_name(dtype));
  return static_cast<size_t>(dtype);
}

/// Runs row(i) for each of `count` rows of `elements` each. A parallel region costs about as much
/// as 20,000 elements.
template <class Row>
void for_each_row(int64_t count, int64_t elements, Row row) {
  if (count * elements < 40'000) {
    for (int64_t i = 0; i < count; ++i) row(i);
    return;
  }
  const int64_t parts = std::min<int64_t>(count, 4 * num_threads());
  parallel_for(parts, [&](int64_t part, int) {
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) row(i);
  });
}

char* row_of(const Tensor& t, int64_t i) {
  return t.as<char>() + i * t.row_stride * static_cast<int64_t>(dtype_size(t.dtype));
}

}  // namespace

void embed(Tensor out, const PackedWeight& table, Tensor ids, Isa isa) {
  const int32_t* id = ids.as<const int32_t>();
  check(!table.rows.empty(), "this weight was not packed for embedding");
  check(out.rank == 2 && out.shape[0] == ids.shape[0] && out.shape[1] == table.k,
        "embed: wrong shapes");
  for (int64_t i = 0; i < ids.shape[0]; ++i)
    check((id[i] >= 0 && id[i] < table.n) || id[i] == kElsewhere, "token id {} of {}", id[i],
          table.n);
  const auto& convert = kernels_for(isa).convert[index_of(out.dtype)];
  for_each_row(ids.shape[0], table.k, [&](int64_t i) {
    int64_t row = id[i];
    if (row == kElsewhere) {
      std::memset(row_of(out, i), 0, static_cast<size_t>(table.k) * dtype_size(out.dtype));
      return;
    }
    const Tensor* part = table.rows.data();
    for (; row >= part->shape[0]; ++part) row -= part->shape[0];
    convert[static_cast<size_t>(part->dtype)](row_of(out, i), row_of(*part, row), table.k);
  });
}

void add(Tensor sum, Tensor x, Isa isa) {
  const auto add_row = kernels_for(isa).add[index_of(sum.dtype)];
  check(sum.shape == x.shape && sum.dtype == x.dtype, "add: wrong shapes");
  for_each_row(sum.shape[0], sum.shape[1],
               [&](int64_t i) { add_row(row_of(sum, i), row_of(x, i), sum.shape[1]); });
}

void rms_norm(Tensor out, Tensor x, const Norm& norm, Isa isa) {
  const auto norm_row = kernels_for(isa).rms_norm[index_of(x.dtype)];
  check(
      out.shape == x.shape && norm.weight.size() == x.shape[1] && norm.weight.dtype == DType::kF32,
      "rms_norm: wrong shapes");
  for_each_row(x.shape[0], x.shape[1], [&](int64_t i) {
    norm_row(row_of(out, i), row_of(x, i), norm.weight.as<const float>(), x.shape[1], norm.eps);
  });
}

void gather_rows(Tensor out, Tensor x, Tensor rows) {
  const int32_t* row = rows.as<const int32_t>();
  check(out.shape[0] == rows.shape[0] && out.shape[1] == x.shape[1] && out.dtype == x.dtype,
        "gather_rows: wrong shapes");
  const size_t bytes = static_cast<size_t>(x.shape[1]) * dtype_size(x.dtype);
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    check(row[i] >= 0 && row[i] < x.shape[0], "row {} of {}", row[i], x.shape[0]);
    std::memcpy(row_of(out, i), row_of(x, row[i]), bytes);
  }
}

void silu_mul(Tensor out, Tensor gate_up, Isa isa) {
  const int64_t n = out.shape[1];
  const auto multiply = kernels_for(isa).silu_mul[index_of(out.dtype)];
  check(gate_up.shape[0] == out.shape[0] && gate_up.shape[1] == 2 * n && gate_up.dtype == out.dtype,
        "silu_mul: wrong shapes");
  for_each_row(out.shape[0], 2 * n, [&](int64_t i) {
    const char* gate = row_of(gate_up, i);
    multiply(row_of(out, i), gate, gate + static_cast<size_t>(n) * dtype_size(out.dtype), n);
  });
}

void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Batch& batch, Isa isa) {
  const Tensor& qkv = args.qkv;
  const int64_t head_dim = kv.head_dim;
  check(qkv.shape[0] == batch.num_tokens() &&
            qkv.shape[1] == (args.num_heads + 2 * kv.num_kv_heads) * head_dim,
        "rope_and_store: wrong shapes");
  const auto rope = kernels_for(isa).rope_and_store[index_of(qkv.dtype)][index_of(kv.dtype)];
  const int32_t* positions = batch.positions.as<const int32_t>();
  const int32_t* slots = batch.slot_mapping.as<const int32_t>();
  const auto size = static_cast<int64_t>(dtype_size(qkv.dtype));
  const auto cache_size = static_cast<int64_t>(dtype_size(kv.dtype));
  for_each_row(qkv.shape[0], qkv.shape[1], [&](int64_t i) {
    char* q = row_of(qkv, i);
    RopeToken token{.q = q,
                    .k = q + args.num_heads * head_dim * size,
                    .v = q + (args.num_heads + kv.num_kv_heads) * head_dim * size,
                    .q_norm = args.q_norm.as<const float>(),
                    .k_norm = args.k_norm.as<const float>(),
                    .cos = args.cos.as<const float>() + positions[i] * args.cos.row_stride,
                    .sin = args.sin.as<const float>() + positions[i] * args.sin.row_stride,
                    .num_heads = args.num_heads,
                    .num_kv_heads = kv.num_kv_heads,
                    .head_dim = head_dim,
                    .eps = args.eps,
                    .out_stride = kv_offset(kv, 0, 0, 0, 1)};
    if (slots[i] >= 0) {
      const int64_t block = slots[i] / kv.block_size, row = slots[i] % kv.block_size * head_dim;
      char* cache = static_cast<char*>(kv.data);
      token.k_out = cache + (kv_offset(kv, args.layer, block, 0, 0) + row) * cache_size;
      token.v_out = cache + (kv_offset(kv, args.layer, block, 1, 0) + row) * cache_size;
    }
    rope(token);
  });
}

void copy_blocks(const KvCache& kv, std::span<const int32_t> from, std::span<const int32_t> to) {
  check(from.size() == to.size(), "copy_blocks: {} blocks onto {}", from.size(), to.size());
  const auto size = static_cast<int64_t>(dtype_size(kv.dtype));
  const auto block = [&](int64_t layer, int32_t b) {
    return static_cast<char*>(kv.data) + kv_offset(kv, layer, b, 0, 0) * size;
  };
  for (size_t i = 0; i < from.size(); ++i)
    for (int64_t layer = 0; layer < kv.num_layers; ++layer)
      std::memcpy(block(layer, to[i]), block(layer, from[i]),
                  static_cast<size_t>(2 * kv.block_elements() * size));
}

}  // namespace nanovllm::cpu
