#include "nanovllm/ops/cpu/elementwise.h"

#include <cmath>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/attention.h"
#include "nanovllm/ops/cpu/gemm/pack_quantized.h"
#include "nanovllm/ops/cpu/kernels/elementwise.h"
#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/rows.h"

namespace nanovllm::cpu {

namespace {

const ElementwiseKernels& kernels(Isa isa, DType dtype) {
  return kernels_for(isa, dtype).elementwise;
}

}  // namespace

void embed(Tensor out, const PackedWeight& table, Tensor ids, Isa isa) {
  const int32_t* id = ids.as<const int32_t>();
  check(out.rank == 2 && out.shape[0] == ids.shape[0] && out.shape[1] == table.k &&
            out.dtype == table.dtype,
        "embed: wrong shapes");
  for (int64_t i = 0; i < ids.shape[0]; ++i)
    check((id[i] >= 0 && id[i] < table.n) || id[i] == kElsewhere, "token id {} of {}", id[i],
          table.n);
  const GemmKernels& panels = kernels_for(isa, table.dtype).gemm;
  for_each_row(ids.shape[0], table.k, [&](int64_t i) {
    if (id[i] == kElsewhere) {
      std::memset(row_of(out, i), 0, static_cast<size_t>(table.k) * dtype_size(out.dtype));
      return;
    }
    if (table.format) {
      std::vector<float> row(static_cast<size_t>(table.k));
      dequantize_row(row.data(), table, id[i], panels.panel_columns);
      return kernels(isa, out.dtype).convert[0](row_of(out, i), row.data(), table.k);
    }
    const int64_t panel = id[i] / panels.panel_columns, column = id[i] % panels.panel_columns;
    panels.unpack_row(row_of(out, i),
                      static_cast<const char*>(table.panels.get()) + panel * table.panel_bytes,
                      column, table.k);
  });
}

void add(Tensor sum, Tensor x, Isa isa) {
  const auto add_row = kernels(isa, sum.dtype).add;
  check(sum.shape == x.shape && sum.dtype == x.dtype, "add: wrong shapes");
  for_each_row(sum.shape[0], sum.shape[1],
               [&](int64_t i) { add_row(row_of(sum, i), row_of(x, i), sum.shape[1]); });
}

void rms_norm(Tensor out, Tensor x, const Norm& norm, Isa isa) {
  const auto norm_row = kernels(isa, x.dtype).rms_norm;
  check(
      out.shape == x.shape && norm.weight.size() == x.shape[1] && norm.weight.dtype == DType::kF32,
      "rms_norm: wrong shapes");
  for_each_row(x.shape[0], x.shape[1], [&](int64_t i) {
    norm_row(row_of(out, i), row_of(x, i), norm.weight.as<const float>(), x.shape[1], norm.eps);
  });
}

namespace {

void check_whole_norms(const Tensor& squares, const Tensor& qkv, const WholeNorms& norms) {
  const int64_t q = norms.q_weight.size(), k = norms.k_weight.size();
  check(squares.shape[0] == qkv.shape[0] && squares.shape[1] == 4 && q + 2 * k == qkv.shape[1] &&
            (!norms.k_counted || norms.k_counted.size() == k),
        "norm_whole: wrong shapes");
}

}  // namespace

void sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms, Isa isa) {
  check_whole_norms(squares, qkv, norms);
  const auto sum_row = kernels(isa, qkv.dtype).sum_squares;
  const int64_t q_size = norms.q_weight.size(), kv_size = norms.k_weight.size();
  const size_t q_bytes = static_cast<size_t>(q_size) * dtype_size(qkv.dtype);
  for_each_row(qkv.shape[0], qkv.shape[1], [&](int64_t i) {
    const char* const q = row_of(qkv, i);
    auto* const sums = reinterpret_cast<float*>(row_of(squares, i));
    sums[0] = sum_row(q, nullptr, q_size);
    sums[1] = sum_row(q + q_bytes, norms.k_counted.as<const float>(), kv_size);
    sums[2] = sums[3] = 0;
  });
}

void scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms, Isa isa) {
  check_whole_norms(squares, qkv, norms);
  const auto scale_row = kernels(isa, qkv.dtype).scale;
  const int64_t q_size = norms.q_weight.size(), kv_size = norms.k_weight.size();
  const size_t q_bytes = static_cast<size_t>(q_size) * dtype_size(qkv.dtype);
  const auto factor = [&](float sum, int64_t num_columns) {
    return 1 / std::sqrt(sum / static_cast<float>(num_columns) + norms.eps);
  };
  for_each_row(qkv.shape[0], qkv.shape[1], [&](int64_t i) {
    char* const q = row_of(qkv, i);
    const auto* const sums = reinterpret_cast<const float*>(row_of(squares, i));
    scale_row(q, factor(sums[0], norms.q_columns), norms.q_weight.as<const float>(), q_size);
    scale_row(q + q_bytes, factor(sums[1], norms.k_columns), norms.k_weight.as<const float>(),
              kv_size);
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
  const auto multiply = kernels(isa, out.dtype).silu_mul;
  check(gate_up.shape[0] == out.shape[0] && gate_up.shape[1] == 2 * n && gate_up.dtype == out.dtype,
        "silu_mul: wrong shapes");
  for_each_row(out.shape[0], 2 * n, [&](int64_t i) {
    const char* gate = row_of(gate_up, i);
    multiply(row_of(out, i), gate, gate + static_cast<size_t>(n) * dtype_size(out.dtype), n);
  });
}

void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step, Isa isa) {
  const Tensor& qkv = args.qkv;
  const int64_t head_dim = kv.head_dim;
  check(qkv.shape[0] == step.num_tokens() &&
            qkv.shape[1] == (args.num_heads + 2 * kv.num_kv_heads) * head_dim &&
            (qkv.dtype == kv.dtype || kv.dtype == DType::kE4M3),
        "rope_and_store: wrong shapes");
  const auto rotate = kernels(isa, qkv.dtype).norm_and_rotate;
  const auto quantize = kernels(isa, qkv.dtype).quantize;
  const int32_t* positions = step.positions.as<const int32_t>();
  const int32_t* slots = step.slot_mapping.as<const int32_t>();
  const int64_t head_bytes = head_dim * static_cast<int64_t>(dtype_size(qkv.dtype));
  for_each_row(qkv.shape[0], qkv.shape[1], [&](int64_t i) {
    const Rotation rotation = {
        .cos = args.cos.as<const float>() + positions[i] * args.cos.row_stride,
        .sin = args.sin.as<const float>() + positions[i] * args.sin.row_stride,
        .head_dim = head_dim,
        .eps = args.eps};
    char* head = row_of(qkv, i);
    for (int64_t h = 0; h < args.num_heads; ++h, head += head_bytes)
      rotate(head, head, args.q_norm.as<const float>(), rotation);
    if (slots[i] < 0) return;
    const int64_t block = slots[i] / kv.block_size, row = slots[i] % kv.block_size;
    for (int64_t h = 0; h < kv.num_kv_heads; ++h, head += head_bytes) {
      char* const value = head + kv.num_kv_heads * head_bytes;
      char* const keys = kv_entry(kv, args.layer, block, 0, h);
      char* const values = kv_entry(kv, args.layer, block, 1, h);
      if (kv.dtype == DType::kE4M3) {
        rotate(head, head, args.k_norm.as<const float>(), rotation);
        *kv_key_scale(kv, keys, row) = quantize(kv_key(kv, keys, row), head, head_dim);
        *kv_key_scale(kv, values, row) = quantize(kv_key(kv, values, row), value, head_dim);
      } else {
        rotate(kv_key(kv, keys, row), head, args.k_norm.as<const float>(), rotation);
        std::memcpy(kv_key(kv, values, row), value, static_cast<size_t>(head_bytes));
      }
    }
  });
}

void copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) {
  const size_t bytes = kv.block_bytes() / static_cast<size_t>(kv.num_layers);  // in one layer
  for (const BlockCopy& copy : copies)
    for (int64_t layer = 0; layer < kv.num_layers; ++layer)
      std::memcpy(kv_entry(kv, layer, copy.to, 0, 0), kv_entry(kv, layer, copy.from, 0, 0), bytes);
}

}  // namespace nanovllm::cpu
