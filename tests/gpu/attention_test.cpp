#include <array>

#include "attention_check.h"

namespace nanovllm {
namespace {

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

/// The maximum of each row of scores is negative and grows from each block of keys to the next one
/// that is read. With float16, a maximum that is too small makes weights infinite.
TEST_P(GpuAttention, NegativeScores) {
  negative_scores = true;
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t head_dim : {64, 128, 256})
      check({head_dim, 2, 2, 64, dtype}, {{700, 700}, {3, 900}, {1, 600}}, 0, /*plain=*/true);
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
        check({head_dim, group, 8, 64, DType::kBF16, e4m3, nullptr, &kE4M3}, seqs, 256);
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
