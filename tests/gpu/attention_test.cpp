#include <fmt/format.h>

#include <array>
#include <numeric>

#include "quantized_weights.h"
#include "two_backends.h"

namespace nanovllm {
namespace {

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
  bool fuses = false;  // whether rotation and store must be in the GEMM's epilogue
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
    SlotTables slots[2];
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
      slots[b].block_tables = {ints, DType::kI32, num_seqs, max_blocks};
      slots[b].last_tokens = {ints + num_seqs * max_blocks, DType::kI32, num_seqs};
    }
    std::vector<int32_t> order(static_cast<size_t>(num_blocks)), table;
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const Twin cos = make({nullptr, DType::kF32, longest, shape.head_dim / 2});
    const Twin sin = make({nullptr, DType::kF32, longest, shape.head_dim / 2});
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
      HostBatch host;
      host.cu_seqlens_q = {0};
      size_t next = 0;
      for (int32_t s = 0; s < num_seqs; ++s) {
        const Seq& seq = seqs[static_cast<size_t>(s)];
        // The number of a slot differs from the sequence's index in the batch.
        const auto slot = static_cast<int32_t>(num_seqs - 1 - s);
        const int32_t first = prompt ? 0 : seq.context - seq.num_new;
        const int32_t last = prompt ? seq.context - seq.num_new : seq.context;
        const size_t first_block = next;
        for (int64_t i = 0; i * shape.block_size < seq.context; ++i, ++next)
          if (prompt) host.block_updates.push_back({slot, static_cast<int32_t>(i), order[next]});
        if (first == last) continue;
        for (int32_t p = first; p < last; ++p) {
          host.input_ids.push_back(0);
          host.positions.push_back(p);
          host.slot_mapping.push_back(static_cast<int32_t>(
              order[first_block + static_cast<size_t>(p / shape.block_size)] * shape.block_size +
              p % shape.block_size));
        }
        host.cu_seqlens_q.push_back(static_cast<int32_t>(host.input_ids.size()));
        host.context_lens.push_back(last);
        host.seq_slots.push_back(slot);
      }
      const auto num_tokens = static_cast<int64_t>(host.input_ids.size());
      if (num_tokens == 0) {
        // One token, so that the step fills the block tables.
        host.input_ids = {0};
        host.positions = {0};
        host.slot_mapping = {-1};
        host.cu_seqlens_q = {0, 1};
        host.context_lens = {1};
        host.seq_slots = {0};
      }
      const Twin qkv = make({nullptr, shape.dtype, std::max<int64_t>(num_tokens, 1), columns});
      const Twin out = make(
          {nullptr, shape.dtype, std::max<int64_t>(num_tokens, 1), num_heads * shape.head_dim}, 0);
      const Twin x = make({nullptr, shape.dtype, qkv.on_cpu.shape[0], k});
      const Twin hidden = make({nullptr, shape.dtype, qkv.on_cpu.shape[0], k}, 0);
      const Twin zeros = make({nullptr, shape.dtype, qkv.on_cpu.shape[0], q_size}, 1e-30f);
      const std::vector<char> original = qkv.host;
      for (int b = 0; b < 2; ++b) {
        HostBatch mine = host;
        const Batch batch = backends[b]->begin_step(mine, slots[b], kv[b]);
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
          backends[b]->rope_and_store(rope, kv[b], batch);
          continue;
        }
        const auto enqueue = [&] {
          if (hidden_size == 0) return backends[b]->rope_attention(rope, args, kv[b], batch);
          Residual residual(on(x), on(hidden));
          const Norm norm = {on(input_norm), 1e-6f};
          if (!plain) backends[b]->add_matmul(residual, on(zeros), *before_weights[b], norm);
          backends[b]->qkv_attention(residual, {norm, *weights[b], plain ? on(bias) : Tensor()},
                                     rope, args, kv[b], batch);
        };
        if (b == 0 || num_tokens != batch.num_seqs()) {
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
        gpu->attention(args, kv[b], batch);
        if (shape.next == nullptr) continue;
        check_quantized_output(*shape.next, what, args, [&](const AttentionArgs& prepares) {
          gpu->upload(qkv.on_gpu.data, original.data(), original.size());
          gpu->upload(memory[1].get(), before.data(), before.size());
          gpu->rope_attention(rope, prepares, kv[1], batch);
        });
      }
      if (!prompt) expect_equal(out, what, shape.tolerance());
    }
  }

 private:
  /// Attention that knows the next weight may quantize its output for it. The GEMM then yields the
  /// same bits as if it quantized the output itself, and does not read the output.
  template <class Attend>
  void check_quantized_output(const QuantizedKind& kind, const std::string& what,
                              AttentionArgs args, Attend attend) {
    const int64_t rows = args.out.shape[0], columns = args.out.shape[1], n = 256;
    const WeightRows parts[] = {random_quantized(kind, n, columns, 0.05f, random, Scales::kBf16)};
    const WeightPtr w = gpu->pack(parts, DType::kBF16);
    args.next = w.get();
    const Twin sum = make({nullptr, DType::kBF16, rows, n});
    const Twin scratch = make({nullptr, DType::kBF16, rows, n}, 0);
    const auto product = [&](Tensor x) {
      gpu->upload(sum.on_gpu.data, sum.host.data(), sum.host.size());
      Residual residual(sum.on_gpu, scratch.on_gpu);
      gpu->add_matmul(residual, x, *w);
      return from_gpu(gpu->finish(residual));
    };
    attend(args);
    const std::vector<char> output = from_gpu(args.out);
    const Twin copy = make(args.out);
    gpu->upload(copy.on_gpu.data, output.data(), output.size());
    const std::vector<char> expected = product(copy.on_gpu);
    attend(args);
    const std::vector<char> nothing(output.size(), static_cast<char>(0xff));
    if (GetParam() == Kernels::kNative) gpu->upload(args.out.data, nothing.data(), output.size());
    EXPECT_EQ(expected, product(args.out)) << what;
    gpu->upload(args.out.data, output.data(), output.size());
  }

  int64_t num_graphs_ = 0;
};

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};

TEST_P(GpuAttention, HeadDimsAndGroups) {
  for (const DType dtype : kDTypes)
    for (const int64_t head_dim : {8, 32, 64, 80, 96, 128, 256})
      for (const int64_t group : {1, 2, 3, 4, 7, 8, 9, 16}) {
        check({head_dim, group, 2, 64, dtype}, {{1, 1}, {1, 130}, {5, 70}, {64, 64}, {1, 64}});
        check({head_dim, group, 2, 64, dtype}, {{1, 2}, {1, 130}, {1, 17}, {1, 700}, {1, 64}});
      }
}

TEST_P(GpuAttention, BlockSizesAndLengthsAtTheirEdges) {
  for (const int64_t block_size : {16, 48, 64, 256, 1024})
    for (const int32_t length : {15, 16, 17, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025}) {
      const Shape shape = {128, 2, 2, block_size, DType::kBF16};
      check(shape, {{1, length}, {2, length}, {length, length}, {length / 2, length}, {1, 1}});
      check(shape, {{1, length}, {1, 1}, {1, length}});
    }
}

TEST_P(GpuAttention, LongContexts) {
  check({128, 2, 1, 64, DType::kBF16}, {{1, 40000}, {1, 3}, {1, 8192}, {1, 20001}});
  check({128, 4, 2, 64, DType::kBF16}, {{1, 40000}});
  check({64, 8, 1, 16, DType::kF16}, {{130, 10000}, {1, 9999}});
  check({128, 16, 1, 64, DType::kBF16}, {{1, 9000}, {1, 300}, {1, 5000}});
  check({128, 2, 1, 256, DType::kF32}, {{1, 12345}});
}

/// A few new tokens after many keys, which several thread blocks share.
TEST_P(GpuAttention, PrefillOfDividedKeys) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t head_dim : {64, 128, 256})
      for (const int64_t group : {1, 4}) {
        const Shape shape = {head_dim, group, 2, 64, dtype};
        check(shape, {{2, 2049}, {1, 700}, {64, 4100}});
        check(shape, {{100, 9000}});
        check(shape, {{65, 3000}, {7, 1000}, {300, 300}, {3, 6001}});
      }
}

/// With so many sequences that clusters do not compute attention, and thread blocks share heads.
TEST_P(GpuAttention, QuantizesItsOutputForTheNextGemm) {
  constexpr QuantizedKind kE4M3 = {QuantizedFormat::kE4M3, 128, 128, false, true};
  for (const auto& [head_dim, group] :
       {std::array<int64_t, 2>{128, 4}, {128, 1}, {64, 2}, {128, 7}, {256, 2}})
    for (const bool e4m3 : {false, true})
      for (const size_t num_seqs : {41, 64, 100}) {
        std::vector<Seq> seqs;
        for (size_t i = 0; i < num_seqs; ++i)
          seqs.push_back({1, static_cast<int32_t>(i % 7 == 3 ? 600 : 20 + i)});
        check({head_dim, group, 8, 64, DType::kBF16, e4m3, nullptr, &kE4M3}, seqs);
      }
}

TEST_P(GpuAttention, RaggedBatches) {
  for (const int64_t num_seqs : {7, 64, 300, 512}) {
    std::vector<Seq> decodes, mixed;
    for (int64_t s = 0; s < num_seqs; ++s) {
      const auto context = static_cast<int32_t>(1 + random() % 700);
      decodes.push_back({1, context});
      mixed.push_back({s % 3 == 0 ? 1 + static_cast<int32_t>(random() % context) : 1, context});
    }
    check({128, 2, 2, 64, DType::kBF16}, decodes);
    check({128, 4, 1, 16, DType::kBF16}, mixed);
  }
}

// Sequences of about equal length, for which range boundaries move to the end of a head.
TEST_P(GpuAttention, EvenBatches) {
  for (const auto& [num_seqs, shortest, kv_heads] :
       {std::array<int32_t, 3>{300, 300, 4}, {70, 640, 8}, {4, 20000, 8}, {280, 513, 2}}) {
    std::vector<Seq> seqs(static_cast<size_t>(num_seqs));
    for (Seq& seq : seqs) seq = {1, shortest + static_cast<int32_t>(random() % 60)};
    check({128, 2, kv_heads, 64, DType::kBF16}, seqs);
  }
}

/// Steps for which decode_cluster_size() on 132 multiprocessors chooses each cluster size, with
/// query heads that fill one or two column tiles of the matrix instruction, or a part of them.
TEST_P(GpuAttention, ClustersOfEachSize) {
  if (GetParam() == Kernels::kPortable) GTEST_SKIP() << "the portable kernels have no clusters";
  struct Step {
    int32_t num_seqs, kv_heads, longest;
  };
  constexpr Step kSteps[] = {{1, 1, 1},   {1, 1, 15},   {1, 1, 16},
                             {1, 1, 17},  {2, 4, 600},                 // 8 thread blocks
                             {1, 1, 600}, {1, 2, 5000}, {2, 1, 513},   // 16
                             {3, 8, 100}, {20, 1, 200},                // 4
                             {5, 8, 70},  {12, 8, 40},  {64, 1, 100},  // 2
                             {16, 10, 33}};                            // 1
  for (const int64_t head_dim : {64, 128})
    for (const int64_t group : {5, 8, 13, 16})
      for (const Step& step : kSteps) {
        std::vector<Seq> seqs;
        for (int32_t s = 0; s < step.num_seqs; ++s)
          seqs.push_back({1, step.longest - s % std::min(step.longest, 20)});
        const DType dtype = group % 2 == 0 ? DType::kBF16 : DType::kF16;
        check({head_dim, group, step.kv_heads, 64, dtype}, seqs);
      }
  for (const int64_t num_seqs : {2, 64}) {
    const std::vector<Seq> seqs(static_cast<size_t>(num_seqs), {1, 300});
    check({128, 16, 1, 64, DType::kBF16}, seqs, 1024);
  }
}

/// Heads that are divided among few and among many thread blocks of decode_attention(), and many
/// query heads: each thread merges several batches of elements, the last one of them incomplete.
TEST_P(GpuAttention, SplitHeadsOfManyQueryHeads) {
  for (const int64_t head_dim : {64, 128, 256})
    for (const int64_t group : {3, 9, 16}) {
      check({head_dim, group, 2, 64, DType::kBF16}, std::vector<Seq>(64, {1, 300}));
      check({head_dim, group, 1, 64, DType::kBF16}, {{1, 1500}, {1, 2}, {1, 400}});
    }
}

/// The shapes of Qwen3 0.6B and 8B. For batches, norm, rotation and store are in the GEMM's
/// epilogue, unless the attention kernel with a cluster for each head includes them.
TEST_P(GpuAttention, RotationInTheEpilogue) {
  for (const int64_t num_seqs : {17, 33, 40, 63, 64, 65}) {
    std::vector<Seq> seqs;
    for (int64_t s = 0; s < num_seqs; ++s)
      seqs.push_back({1, static_cast<int32_t>(1 + random() % 300)});
    fuses = GetParam() == Kernels::kNative && num_seqs >= 33 && num_seqs <= 64;
    for (const bool plain : {false, true})
      check({plain ? 64 : 128, 2, 8, 64, DType::kBF16}, seqs, 1024, plain);
    fuses = false;
    seqs.resize(static_cast<size_t>(num_seqs / 2));
    seqs.push_back({9, 50});
    check({128, 2, 8, 16, DType::kBF16}, seqs, 1024);
  }
  for (const int64_t num_seqs : {17, 32, 50, 64}) {
    std::vector<Seq> seqs = {{1, 700}};  // too long for clusters
    while (std::ssize(seqs) < num_seqs)
      seqs.push_back({1, static_cast<int32_t>(1 + random() % 100)});
    fuses = GetParam() == Kernels::kNative;
    check({128, 4, 8, 64, DType::kBF16}, seqs, 4096);
    fuses = false;
    seqs.resize(static_cast<size_t>(num_seqs / 2));
    seqs.push_back({9, 50});
    check({128, 4, 8, 64, DType::kBF16}, seqs, 4096, true);
  }
}

/// The same with quantized weights, and with both types of the cache.
TEST_P(GpuAttention, RotationInTheEpilogueOfQuantizedWeights) {
  for (const QuantizedKind& kind : {QuantizedKind{QuantizedFormat::kE4M3, 128, 128},
                                    {QuantizedFormat::kInt4, 1, 128, true},
                                    {QuantizedFormat::kInt4, 1, 32},
                                    {QuantizedFormat::kInt8, 1, 0}})
    for (const int64_t num_seqs : {33, 40, 64})
      for (const int64_t head_dim : {64, 128})
        for (const bool e4m3 : {false, true}) {
          std::vector<Seq> seqs;
          for (int64_t s = 0; s < num_seqs; ++s)
            seqs.push_back({1, static_cast<int32_t>(1 + random() % 300)});
          fuses = GetParam() == Kernels::kNative;
          check({head_dim, 2, 8, 64, DType::kBF16, e4m3, &kind}, seqs, 1024, head_dim == 64);
          fuses = false;
        }
}

// A cache of e4m3, with every kernel that writes or reads it.

TEST_P(GpuAttention, Fp8HeadDimsAndGroups) {
  for (const DType dtype : kDTypes)
    for (const int64_t head_dim : {8, 64, 80, 128, 256})
      for (const int64_t group : {1, 2, 7, 16, 17}) {
        check({head_dim, group, 2, 64, dtype, true},
              {{1, 1}, {1, 130}, {5, 70}, {64, 64}, {1, 64}});
        check({head_dim, group, 2, 64, dtype, true},
              {{1, 2}, {1, 130}, {1, 17}, {1, 700}, {1, 64}});
      }
}

TEST_P(GpuAttention, Fp8BlockSizesAndLengthsAtTheirEdges) {
  for (const int64_t block_size : {16, 48, 64, 256})
    for (const int32_t length : {15, 16, 17, 63, 64, 65, 257, 1025}) {
      const Shape shape = {128, 2, 2, block_size, DType::kBF16, true};
      check(shape, {{1, length}, {2, length}, {length, length}, {length / 2, length}, {1, 1}});
      check(shape, {{1, length}, {1, 1}, {1, length}});
    }
}

TEST_P(GpuAttention, Fp8LongContextsAndLargeBatches) {
  check({128, 2, 1, 64, DType::kBF16, true}, {{1, 40000}, {1, 3}, {1, 8192}, {1, 20001}});
  check({64, 8, 1, 16, DType::kF16, true}, {{130, 10000}, {1, 9999}});
  check({128, 2, 8, 64, DType::kBF16, true}, std::vector<Seq>(70, {1, 660}));
  // More keys than are copied for prefill attention at a time: three groups, one of them mixed.
  check({128, 2, 8, 64, DType::kBF16, true},
        {{1, 50}, {500, 9000}, {3, 11000}, {1, 2}, {2, 8000}, {400, 400}});
  for (const int64_t num_seqs : {64, 300}) {
    std::vector<Seq> decodes, mixed;
    for (int64_t s = 0; s < num_seqs; ++s) {
      const auto context = static_cast<int32_t>(1 + random() % 700);
      decodes.push_back({1, context});
      mixed.push_back({s % 3 == 0 ? 1 + static_cast<int32_t>(random() % context) : 1, context});
    }
    check({128, 2, 2, 64, DType::kBF16, true}, decodes);
    check({128, 4, 1, 16, DType::kBF16, true}, mixed);
  }
}

TEST_P(GpuAttention, Fp8FusedRotations) {
  for (const int64_t head_dim : {64, 128})
    for (const int64_t group : {2, 5, 16})
      for (const auto& [num_seqs, kv_heads, longest] :
           {std::array<int32_t, 3>{1, 1, 1}, {1, 1, 17}, {1, 2, 5000}, {3, 8, 100}, {12, 8, 40}}) {
        std::vector<Seq> seqs;
        for (int32_t s = 0; s < num_seqs; ++s)
          seqs.push_back({1, longest - s % std::min(longest, 20)});
        check({head_dim, group, kv_heads, 64, group == 5 ? DType::kF16 : DType::kBF16, true}, seqs);
      }
  for (const int64_t num_seqs : {17, 40, 64}) {
    std::vector<Seq> seqs = {{1, 700}};  // too long for clusters
    while (std::ssize(seqs) < num_seqs)
      seqs.push_back({1, static_cast<int32_t>(1 + random() % 100)});
    fuses = GetParam() == Kernels::kNative;
    for (const bool plain : {false, true})
      check({plain ? 64 : 128, 4, 8, 64, DType::kBF16, true}, seqs, 4096, plain);
    fuses = false;
  }
}

NANOVLLM_BOTH_KERNELS(GpuAttention);

}  // namespace
}  // namespace nanovllm
