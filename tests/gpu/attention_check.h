#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quantized_weights.h"
#include "two_backends.h"

// The check of attention_test.cpp: a batch over a paged cache, on the GPU and on the CPU.
namespace nanovllm {

struct Seq {
  int32_t num_new, context;
};
struct Shape {
  int64_t head_dim, group, num_kv_heads, block_size;
  DType dtype;
  bool e4m3 = false;                    // the cache
  const QuantizedKind* w = nullptr;     // of the weight of q, k and v, if it is quantized
  const QuantizedKind* next = nullptr;  // of the weight that multiplies the output

  /// The largest difference between the backends. Elements of keys that differ in their last bit
  /// before they are quantized may differ by a sixteenth afterwards, and of a small head each
  /// counts more.
  double tolerance() const {
    const double quantized = !e4m3 ? 0 : head_dim < 64 ? 5e-2 : 2.5e-2;
    return (dtype == DType::kF32 ? 5e-5 : 1.5e-2) + quantized;
  }
};

/// Fills a cache through rope_and_store, then computes new tokens over it, on both backends.
class GpuAttention : public TwoBackends {
 protected:
  bool fuses = false;            // whether rotation and store must be in the GEMM's epilogue
  bool negative_scores = false;  // makes them so: smaller for later and for even keys
  /// With a hidden_size, a GEMM computes q, k and v; otherwise they are random. `plain`: without
  /// norms of q and k, and with a bias.
  void check(const Shape& shape, const std::vector<Seq>& seqs, int64_t hidden_size = 0,
             bool plain = false) {
    if (skips()) return;
    const std::string what = fmt::format(
        "head_dim {}, group {}, block {}, {}{}{}, {} sequences, first {} of {}", shape.head_dim,
        shape.group, shape.block_size, dtype_name(shape.dtype), shape.e4m3 ? " over e4m3" : "",
        shape.w != nullptr ? ", " + name_of(*shape.w) : "", seqs.size(), seqs[0].num_new,
        seqs[0].context);
    const auto num_seqs = static_cast<int64_t>(seqs.size());
    int64_t num_blocks = 1, max_blocks = 1, longest = 0;
    for (const Seq& seq : seqs) {
      const int64_t blocks = (seq.context + shape.block_size - 1) / shape.block_size;
      num_blocks += blocks;
      max_blocks = std::max(max_blocks, blocks);
      longest = std::max<int64_t>(longest, seq.context);
    }
    KvCache kv[2];
    Buffer memory[2], tables[2];
    Backend* const backends[2] = {cpu.get(), gpu.get()};
    for (int b = 0; b < 2; ++b) {
      kv[b] = {.dtype = shape.e4m3 ? DType::kE4M3 : shape.dtype,
               .num_layers = 2,
               .num_blocks = num_blocks,
               .block_size = shape.block_size,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim};
      const size_t bytes = kv[b].block_bytes() * static_cast<size_t>(num_blocks);
      memory[b] = backends[b]->allocate(bytes);
      const std::vector<char> poison(bytes, static_cast<char>(0xff));  // NaN
      backends[b]->upload(memory[b].get(), poison.data(), bytes);
      kv[b].data = memory[b].get();
      tables[b] = backends[b]->allocate(static_cast<size_t>(num_seqs * (max_blocks + 1)) * 4);
      auto* const ints = static_cast<int32_t*>(tables[b].get());
      kv[b].block_tables = {ints, DType::kI32, num_seqs, max_blocks};
    }
    std::vector<int32_t> order(static_cast<size_t>(num_blocks)), table;
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    Twin cos = make({nullptr, DType::kF32, longest, shape.head_dim / 2});
    Twin sin = make({nullptr, DType::kF32, longest, shape.head_dim / 2});
    if (negative_scores) {
      change(cos, [](int64_t, float) { return 1; });
      change(sin, [](int64_t, float) { return 0; });
    }
    const Twin q_norm = make({nullptr, DType::kF32, shape.head_dim});
    const Twin k_norm = make({nullptr, DType::kF32, shape.head_dim});
    const int64_t num_heads = shape.group * shape.num_kv_heads;
    const int64_t columns = (num_heads + 2 * shape.num_kv_heads) * shape.head_dim;

    const int64_t k = std::max<int64_t>(hidden_size, 1);
    // The scale makes q and k independent of the width of x, because large scores would multiply
    // the rounding errors.
    const Twin weight =
        make({nullptr, shape.dtype, columns, k}, 1.6f / std::sqrt(static_cast<float>(k)));
    const Twin input_norm = make({nullptr, DType::kF32, k});
    const Twin bias = make({nullptr, DType::kF32, columns});
    // The weight of the previous GEMM, which adds nothing to x but may begin its norm.
    const int64_t q_size = num_heads * shape.head_dim;
    const Twin before_weight = make({nullptr, shape.dtype, k, q_size});
    // The CPU rounds the weights to bfloat16, the GPU does not; with these scales they are exact.
    std::vector<WeightRows> quantized;
    if (shape.w != nullptr)
      quantized = {random_quantized(*shape.w, columns, k, 1.6f / std::sqrt(static_cast<float>(k)),
                                    random, Scales::kPowersOfTwo)};
    WeightPtr weights[2], before_weights[2];
    for (int b = 0; b < 2 && hidden_size > 0; ++b) {
      weights[b] = backends[b]->pack(weight.on_cpu, shape.dtype);
      if (shape.w != nullptr)
        weights[b] = backends[b]->pack(b == 0 ? as_floats(quantized) : quantized, shape.dtype);
      before_weights[b] = backends[b]->pack(before_weight.on_cpu, shape.dtype);
    }

    for (const bool prompt : {true, false}) {
      std::vector<StepRow> rows;
      std::vector<BlockUpdate> updates;
      std::vector<int32_t> positions;
      size_t next = 0;
      for (int32_t s = 0; s < num_seqs; ++s) {
        const Seq& seq = seqs[static_cast<size_t>(s)];
        // The number of a slot differs from the sequence's index in the step.
        const auto slot = static_cast<int32_t>(num_seqs - 1 - s);
        const int32_t first = prompt ? 0 : seq.context - seq.num_new;
        const int32_t last = prompt ? seq.context - seq.num_new : seq.context;
        for (int64_t i = 0; i * shape.block_size < seq.context; ++i, ++next)
          if (prompt) updates.push_back({slot, static_cast<int32_t>(i), order[next]});
        if (first == last) continue;
        for (int32_t p = first; p < last; ++p) positions.push_back(p);
        rows.push_back({.slot = slot, .start = first, .num_tokens = last - first});
      }
      const auto num_tokens = static_cast<int64_t>(positions.size());
      // One token, so that the step fills the block tables.
      if (num_tokens == 0) rows.push_back({.slot = 0, .num_tokens = 1, .store = 0});
      Twin qkv = make({nullptr, shape.dtype, std::max<int64_t>(num_tokens, 1), columns});
      if (negative_scores)
        change(qkv, [&](int64_t i, float x) {
          const int64_t column = i % columns;
          if (column < q_size) return std::abs(x);
          if (column >= q_size + shape.num_kv_heads * shape.head_dim) return x;
          const int32_t position = positions[static_cast<size_t>(i / columns)];
          return -std::abs(x) * static_cast<float>((1 + position / 64) * (position % 2 ? 1 : 8));
        });
      const Twin out = make(
          {nullptr, shape.dtype, std::max<int64_t>(num_tokens, 1), num_heads * shape.head_dim}, 0);
      const Twin x = make({nullptr, shape.dtype, qkv.on_cpu.shape[0], k});
      const Twin hidden = make({nullptr, shape.dtype, qkv.on_cpu.shape[0], k}, 0);
      const Twin zeros = make({nullptr, shape.dtype, qkv.on_cpu.shape[0], q_size}, 1e-30f);
      const std::vector<char> original = qkv.host;
      for (int b = 0; b < 2; ++b) {
        Step& step = backends[b]->new_step();
        step.token_ids.assign(static_cast<size_t>(std::max<int64_t>(num_tokens, 1)), 0);
        step.rows = rows;
        step.block_updates = updates;
        auto* const ints = static_cast<int32_t*>(tables[b].get());
        step.last_tokens = {ints + num_seqs * max_blocks, DType::kI32, num_seqs};
        backends[b]->begin_step(kv[b]);
        if (num_tokens == 0) continue;
        std::vector<char> before;  // the GPU's cache before this step
        if (b == 1 && !prompt) {
          before.resize(kv[1].block_bytes() * static_cast<size_t>(num_blocks));
          gpu->download(before.data(), memory[1].get(), before.size());
        }
        const auto on = [&](const Twin& t) { return b == 0 ? t.on_cpu : t.on_gpu; };
        const RopeStoreArgs rope = {.qkv = on(qkv),
                                    .q_norm = plain ? Tensor() : on(q_norm),
                                    .k_norm = plain ? Tensor() : on(k_norm),
                                    .cos = on(cos),
                                    .sin = on(sin),
                                    .num_heads = num_heads,
                                    .eps = 1e-6f,
                                    .layer = 1};
        const AttentionArgs args = {.out = on(out),
                                    .qkv = on(qkv),
                                    .num_heads = num_heads,
                                    .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
                                    .layer = 1};
        if (prompt) {
          backends[b]->rope_and_store(rope, kv[b], step);
          continue;
        }
        const auto enqueue = [&] {
          if (hidden_size == 0) return backends[b]->rope_attention(rope, args, kv[b], step);
          Residual residual(on(x), on(hidden));
          const Norm norm = {on(input_norm), 1e-6f};
          if (!plain) backends[b]->add_matmul(residual, on(zeros), *before_weights[b], norm);
          backends[b]->qkv_attention(residual, {norm, *weights[b], plain ? on(bias) : Tensor()},
                                     rope, args, kv[b], step);
        };
        if (b == 0 || num_tokens != step.num_seqs()) {
          enqueue();
          continue;
        }
        // With a graph, the first call runs eagerly and the second one is captured. The CPU has
        // already changed qkv.host.
        gpu->replay(++num_graphs_, enqueue);
        expect_equal(out, "eager, " + what, shape.tolerance());
        gpu->upload(qkv.on_gpu.data, original.data(), original.size());
        gpu->upload(memory[1].get(), before.data(), before.size());
        const std::vector<char> nothing(out.host.size(), static_cast<char>(0xff));
        gpu->upload(out.on_gpu.data, nothing.data(), nothing.size());
        gpu->replay(num_graphs_, enqueue);
        expect_equal(out, "graph, " + what, shape.tolerance());
        if (fuses) {
          // Keys and values must be written only to the cache.
          const std::vector<char> now = from_gpu(qkv.on_gpu);
          const size_t q_bytes = static_cast<size_t>(num_heads * shape.head_dim) * 2;
          const size_t row = static_cast<size_t>(columns) * 2;
          for (size_t at = 0; at < now.size(); at += row)
            ASSERT_TRUE(std::equal(&now[at + q_bytes], &now[at] + row, &original[at + q_bytes]))
                << what;
        }
        // Checks the newest keys in the cache, with a kernel that reads them from there. q is the
        // CPU's, which is already rotated.
        gpu->upload(qkv.on_gpu.data, qkv.host.data(), qkv.host.size());
        gpu->upload(out.on_gpu.data, nothing.data(), nothing.size());
        gpu->attention(args, kv[b], step);
        if (shape.next == nullptr) continue;
        // Attention that knows the weight which multiplies its output may quantize the output for
        // it. The sum then has the same bits as if the GEMM had quantized it.
        const WeightRows parts[] = {
            random_quantized(*shape.next, hidden_size, q_size, 0.05f, random, Scales::kBf16)};
        const WeightPtr after = gpu->pack(parts, DType::kBF16);
        const QkvArgs qkv_args = {{on(input_norm), 1e-6f}, *weights[1], {}};
        const auto sum_of = [&](const auto& add) {
          gpu->upload(x.on_gpu.data, x.host.data(), x.host.size());
          gpu->upload(memory[1].get(), before.data(), before.size());
          gpu->upload(out.on_gpu.data, nothing.data(), nothing.size());
          Residual residual(x.on_gpu, hidden.on_gpu);
          add(residual);
          return from_gpu(gpu->finish(residual));
        };
        const auto separate = sum_of([&](Residual& residual) {
          gpu->qkv_attention(residual, qkv_args, rope, args, kv[1], step);
          gpu->add_matmul(residual, args.out, *after, {});
        });
        const auto together = sum_of([&](Residual& residual) {
          gpu->attention_block(residual, qkv_args, rope, args, kv[1], step, *after, {});
        });
        EXPECT_EQ(separate, together) << what;
      }
      if (!prompt) expect_equal(out, what, shape.tolerance());
    }
  }

 private:
  int64_t num_graphs_ = 0;
};

}  // namespace nanovllm
