#include <fmt/format.h>

#include <array>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"
#include "two_backends.h"

namespace nanovllm {
namespace {

constexpr DType kTypesOfRows[] = {DType::kF32, DType::kBF16, DType::kF16};

using GpuRows = TwoBackends;

TEST_P(GpuRows, RmsNorm) {
  for (const DType dtype : kTypesOfRows)
    for (const int64_t width : {8, 72, 172, 1024, 1032, 5120, 12288})
      for (const int64_t rows : {1, 3, 300, 1100}) {
        const Twin x = make({nullptr, dtype, rows, width}),
                   out = make({nullptr, dtype, rows, width}, 0);
        const Twin weight = make({nullptr, DType::kF32, width});
        gpu->rms_norm(out.on_gpu, x.on_gpu, {weight.on_gpu, 1e-6f});
        cpu->rms_norm(out.on_cpu, x.on_cpu, {weight.on_cpu, 1e-6f});
        expect_equal(out, fmt::format("{} [{}, {}]", dtype_name(dtype), rows, width));
        EXPECT_EQ(from_gpu(x.on_gpu), x.host) << "the residual needs its input";
      }
}

TEST_P(GpuRows, WholeNorms) {
  for (const DType dtype : kTypesOfRows)
    for (const bool counts_all : {true, false})
      for (const int64_t rows : {1, 3, 300}) {
        constexpr int64_t kQ = 4096, kKv = 520;
        const Twin qkv = make({nullptr, dtype, rows, kQ + 2 * kKv});
        const Twin q = make({nullptr, DType::kF32, kQ}), k = make({nullptr, DType::kF32, kKv});
        Twin counted = make({nullptr, DType::kF32, kKv});
        change(counted, [](int64_t i, float) { return i < kKv / 2 ? 0 : 1; });
        const Twin squares = make({nullptr, DType::kF32, rows, 4}, 0);
        const auto norms = [&](auto where) -> WholeNorms {
          return {q.*where, k.*where, counts_all ? Tensor() : counted.*where,
                  2 * kQ,   2 * kKv,  1e-5f};
        };
        gpu->norm_whole(qkv.on_gpu, norms(&Twin::on_gpu), squares.on_gpu);
        cpu->norm_whole(qkv.on_cpu, norms(&Twin::on_cpu), squares.on_cpu);
        expect_equal(squares, fmt::format("squares of {}", dtype_name(dtype)));
        expect_equal(qkv, fmt::format("{} [{}]", dtype_name(dtype), rows));
      }
}

TEST_P(GpuRows, SiluMul) {
  for (const DType dtype : kTypesOfRows)
    for (const int64_t width : {1, 12, 172, 3072})
      for (const int64_t rows : {1, 3, 600}) {
        const Twin x = make({nullptr, dtype, rows, 2 * width}, 4);
        const Twin out = make({nullptr, dtype, rows, width}, 0);
        gpu->silu_mul(out.on_gpu, x.on_gpu);
        cpu->silu_mul(out.on_cpu, x.on_cpu);
        expect_equal(out, fmt::format("{} [{}, {}]", dtype_name(dtype), rows, width));
      }
}

TEST_P(GpuRows, GatherAndEmbed) {
  for (const DType dtype : kTypesOfRows)
    for (const int64_t width : {8, 12, 1024}) {
      const Twin table = make({nullptr, dtype, 50, width}),
                 out = make({nullptr, dtype, 5, width}, 0);
      const Twin ids = make(std::vector<int32_t>{49, 0, 7, 7, 31});
      gpu->gather_rows(out.on_gpu, table.on_gpu, ids.on_gpu);
      cpu->gather_rows(out.on_cpu, table.on_cpu, ids.on_cpu);
      EXPECT_EQ(from_gpu(out.on_gpu), out.host);
      const WeightPtr weight = gpu->pack(table.on_cpu, dtype);
      gpu->embed(out.on_gpu, *weight, ids.on_gpu);
      EXPECT_EQ(from_gpu(out.on_gpu), out.host);
    }
}

/// On the GPU a layer has the keys of all blocks, then the values of all blocks.
TEST_P(GpuRows, CopyBlocks) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kE4M3}) {
    KvCache kv = {.dtype = dtype,
                  .num_layers = 3,
                  .num_blocks = 40,
                  .block_size = 16,
                  .num_kv_heads = 2,
                  .head_dim = 24};
    std::vector<BlockCopy> copies;
    for (int32_t block = 0; block < 20; ++block) copies.push_back({block, 39 - block});
    // Any words will do.
    const int64_t words = kv.num_kv_heads * kv.entry_bytes() / 4;
    Twin blocks = make({nullptr, DType::kF32, 2 * kv.num_layers * kv.num_blocks, words});
    kv.data = blocks.on_gpu.data;
    gpu->copy_blocks(kv, copies);
    for (int64_t first = 0; first < blocks.on_cpu.shape[0]; first += kv.num_blocks)
      for (const auto& [from, to] : copies) {
        const Tensor source = blocks.on_cpu.rows(first + from, 1);
        std::memcpy(blocks.on_cpu.rows(first + to, 1).data, source.data, source.bytes());
      }
    EXPECT_EQ(from_gpu(blocks.on_gpu), blocks.host);
  }
}

/// n and k of GEMMs in published models, and odd ones.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1024, 2048}, {4096, 1024}, {192, 64},
                                                   {256, 12288}, {80, 72},     {24, 40}};
constexpr int64_t kRowCounts[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 100, 257};

class GpuGemms : public TwoBackends {
 protected:
  enum Which { kStores = 1, kAdds = 2, kSwiglus = 4, kLogits = 8, kAll = 15 };
  /// Compares the GEMMs of `which` with w [n, k], for each number of tokens.
  void expect_gemms(DType dtype, int64_t n, int64_t k, std::span<const int64_t> token_counts,
                    int which = kAll) {
    const Twin w = make({nullptr, dtype, n, k}, 0.05f);
    const Twin bias = make({nullptr, DType::kF32, n});
    const WeightRows parts[] = {w.on_cpu.rows(0, n / 4), w.on_cpu.rows(n / 4, n - n / 4)};
    const WeightPtr on_gpu = gpu->pack(parts, dtype);
    const WeightPtr on_cpu = cpu->pack(parts, dtype);
    const Twin weight = make({nullptr, DType::kF32, k});
    for (const int64_t tokens : token_counts) {
      if (which == kAll && skips()) continue;  // tests with other values of `which` have few shapes
      const std::string what = fmt::format("{} [{}, {}, {}]", dtype_name(dtype), tokens, n, k);
      const Twin x = make({nullptr, dtype, tokens, k});
      const Twin out = make({nullptr, dtype, tokens, n}, 0);
      const Twin hidden = make({nullptr, dtype, tokens, k}, 0);
      if (which & kStores) {
        for (const bool biased : {false, true}) {
          gpu->matmul(out.on_gpu, x.on_gpu, *on_gpu, biased ? bias.on_gpu : Tensor());
          cpu->matmul(out.on_cpu, x.on_cpu, *on_cpu, biased ? bias.on_cpu : Tensor());
          expect_equal(out, what);
        }
        Residual gpu_x(x.on_gpu, hidden.on_gpu), cpu_x(x.on_cpu, hidden.on_cpu);
        gpu->norm_matmul(out.on_gpu, gpu_x, {weight.on_gpu, 1e-6f}, *on_gpu, bias.on_gpu);
        cpu->norm_matmul(out.on_cpu, cpu_x, {weight.on_cpu, 1e-6f}, *on_cpu, bias.on_cpu);
        expect_equal(out, "norm, " + what);
      }
      if (which & kAdds) {
        const Twin residual = make({nullptr, dtype, tokens, n});
        const Twin delta = make({nullptr, dtype, tokens, n}, 0);
        Residual on_both[] = {{residual.on_gpu, delta.on_gpu}, {residual.on_cpu, delta.on_cpu}};
        gpu->add_matmul(on_both[0], x.on_gpu, *on_gpu);
        cpu->add_matmul(on_both[1], x.on_cpu, *on_cpu);
        expect_equal(residual, "add, " + what);
      }
      if (which & kSwiglus) {
        const Twin half = make({nullptr, dtype, tokens, n / 2}, 0);
        Residual gpu_x(x.on_gpu, hidden.on_gpu), cpu_x(x.on_cpu, hidden.on_cpu);
        gpu->norm_swiglu(half.on_gpu, gpu_x, {weight.on_gpu, 1e-6f}, *on_gpu, out.on_gpu);
        cpu->norm_swiglu(half.on_cpu, cpu_x, {weight.on_cpu, 1e-6f}, *on_cpu, out.on_cpu);
        expect_equal(half, "swiglu, " + what, dtype == DType::kBF16 ? 2e-2 : 0);
      }
      if (which & kLogits) {
        const Twin logits = make({nullptr, DType::kF32, tokens, n}, 0);
        gpu->matmul(logits.on_gpu, x.on_gpu, *on_gpu);
        cpu->matmul(logits.on_cpu, x.on_cpu, *on_cpu);
        expect_equal(logits, "float32 logits, " + what, 1e-4);
      }
    }
  }
};

TEST_P(GpuGemms, OfAllDtypesAndOddShapes) {
  for (const DType dtype : kTypesOfRows)
    for (const auto& [n, k] : kShapes) expect_gemms(dtype, n, k, kRowCounts);
}

/// The shapes of 0.6B and 8B: swap-AB up to 64 tokens, and what the cost model chooses above.
TEST_P(GpuGemms, OfModels) {
  for (const auto& [n, k] : {std::pair{4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072}})
    expect_gemms(DType::kBF16, n, k,
                 std::array<int64_t, 12>{8, 9, 16, 17, 31, 32, 33, 48, 64, 65, 96, 128});
  for (const auto& [n, k] : {std::pair{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}})
    expect_gemms(DType::kBF16, n, k, std::array<int64_t, 6>{9, 16, 17, 32, 33, 64});
}

/// Sizes that thread blocks cannot share evenly: columns of a thread block, chunks of k, waves.
TEST_P(GpuGemms, OfUnevenModels) {
  for (const auto& [n, k] : {std::pair{1152, 896},
                             {896, 896},
                             {9728, 896},
                             {896, 4864},
                             {1600, 960},
                             {5120, 960},
                             {960, 2560},
                             {16384, 512}})
    expect_gemms(DType::kBF16, n, k, std::array<int64_t, 7>{1, 5, 12, 17, 31, 40, 64},
                 kStores | kAdds | kSwiglus);
  // Few tokens with a long k, and with so many columns that thread blocks have more of them.
  for (const auto& [n, k] :
       {std::pair{1024, 5120}, {9216, 5120}, {9216, 256}, {6000, 256}, {13056, 5120}, {15008, 320}})
    expect_gemms(DType::kBF16, n, k, std::array<int64_t, 5>{1, 2, 3, 7, 16},
                 kStores | kAdds | kSwiglus);
}

/// A norm between two GEMMs in the shapes of 0.6B and 8B, and with an uneven k. The first GEMM may
/// compute a part of it.
TEST_P(GpuGemms, WithANormBetween) {
  for (const auto& [first_k, hidden, n] : {std::array<int64_t, 3>{2048, 1024, 6144},
                                           {3072, 1024, 4096},
                                           {12288, 4096, 6144},
                                           {4864, 896, 1152}}) {
    const Twin w = make({nullptr, DType::kBF16, hidden, first_k}, 0.05f);
    const Twin next_w = make({nullptr, DType::kBF16, n, hidden}, 0.05f);
    const Twin weight = make({nullptr, DType::kF32, hidden});
    const Twin other_weight = make({nullptr, DType::kF32, hidden});
    const WeightPtr w_gpu = gpu->pack(w.on_cpu, DType::kBF16);
    const WeightPtr w_cpu = cpu->pack(w.on_cpu, DType::kBF16);
    const WeightPtr next_gpu = gpu->pack(next_w.on_cpu, DType::kBF16);
    const WeightPtr next_cpu = cpu->pack(next_w.on_cpu, DType::kBF16);
    for (const int64_t tokens : {3, 9, 16, 17, 32, 33, 50, 64, 65}) {
      if (skips()) continue;
      const std::string what = fmt::format("[{}, {}, {}, {}]", tokens, first_k, hidden, n);
      const Twin x = make({nullptr, DType::kBF16, tokens, first_k}, 0.3f);
      const Twin residual = make({nullptr, DType::kBF16, tokens, hidden});
      const Twin scratch = make({nullptr, DType::kBF16, tokens, hidden}, 0);
      const Twin out = make({nullptr, DType::kBF16, tokens, n}, 0);
      const Twin half = make({nullptr, DType::kBF16, tokens, n / 2}, 0);
      Residual gpu_residual(residual.on_gpu, scratch.on_gpu);
      Residual cpu_residual(residual.on_cpu, scratch.on_cpu);
      const auto expect_norms_of = [&](const Twin& norm) {
        const std::string which = what + (&norm == &weight ? "" : ", another norm");
        const Norm on_gpu = {norm.on_gpu, 1e-6f}, on_cpu = {norm.on_cpu, 1e-6f};
        gpu->norm_swiglu(half.on_gpu, gpu_residual, on_gpu, *next_gpu, out.on_gpu);
        cpu->norm_swiglu(half.on_cpu, cpu_residual, on_cpu, *next_cpu, out.on_cpu);
        expect_equal(half, "swiglu, " + which, 2e-2);
      };
      for (const bool swiglu : {false, true}) {
        gpu->add_matmul(gpu_residual, x.on_gpu, *w_gpu, {weight.on_gpu, 1e-6f});
        cpu->add_matmul(cpu_residual, x.on_cpu, *w_cpu, {weight.on_cpu, 1e-6f});
        expect_equal(residual, "residual, " + what);
        if (swiglu) {
          expect_norms_of(weight);
          expect_norms_of(other_weight);
          expect_norms_of(weight);
          continue;
        }
        const Norm on_gpu = {weight.on_gpu, 1e-6f}, on_cpu = {weight.on_cpu, 1e-6f};
        gpu->norm_matmul(out.on_gpu, gpu_residual, on_gpu, *next_gpu);
        cpu->norm_matmul(out.on_cpu, cpu_residual, on_cpu, *next_cpu);
        expect_equal(out, "norm, " + what);
      }
    }
  }
}

/// Shapes that do not use cuBLASLt, for the tools that report races in its kernels.
TEST_P(GpuGemms, OfOwnKernels) {
  if (GetParam() == Kernels::kPortable) GTEST_SKIP() << "cuBLASLt computes these GEMMs";
  const std::array<int64_t, 4> tokens = {3, 16, 20, 50};
  expect_gemms(DType::kBF16, 4096, 1024, tokens, kStores);
  expect_gemms(DType::kBF16, 1024, 2048, tokens, kAdds);
  expect_gemms(DType::kBF16, 6144, 1024, tokens, kSwiglus);
}

/// The sums of split-K are added in a fixed order, whichever thread block is first.
TEST_P(GpuGemms, SwapAbIsDeterministic) {
  if (GetParam() == Kernels::kPortable) GTEST_SKIP() << "cuBLASLt computes these GEMMs";
  const int64_t n = 1024, k = 3072, tokens = 50;
  const Twin w = make({nullptr, DType::kBF16, n, k}, 0.05f);
  const WeightPtr weight = gpu->pack(w.on_cpu, DType::kBF16);
  const Twin x = make({nullptr, DType::kBF16, tokens, k}),
             delta = make({nullptr, DType::kBF16, tokens, n});
  const Twin first = make({nullptr, DType::kBF16, tokens, n});
  std::vector<char> bits;
  for (int run = 0; run < 5; ++run) {
    gpu->upload(first.on_gpu.data, first.host.data(), first.host.size());
    Residual residual(first.on_gpu, delta.on_gpu);
    gpu->add_matmul(residual, x.on_gpu, *weight);
    if (run == 0) bits = from_gpu(first.on_gpu);
    EXPECT_EQ(from_gpu(first.on_gpu), bits) << "run " << run;
  }
}

/// Weights that are packed one after the other in load_weights(), and what remains of them if one
/// cannot be read.
TEST_P(GpuGemms, WeightsThatAreLoadedTogether) {
  std::vector<Twin> matrices;
  for (const int64_t n : {2048, 16, 3000, 512})
    matrices.push_back(make({nullptr, DType::kBF16, n, 1024}));
  std::vector<WeightPtr> weights;
  const auto load = [&] {
    weights.clear();
    for (const Twin& matrix : matrices) weights.push_back(gpu->pack(matrix.on_cpu, DType::kBF16));
  };
  const WeightRows broken(DType::kBF16, 5000, 1024,
                          [](int64_t, int64_t, void*) { fail("cannot be read"); });
  EXPECT_THROW(gpu->load_weights([&] {
    load();
    gpu->pack(broken, DType::kBF16);  // dropped at once
    load();
  }),
               UserError);
  gpu->load_weights(load);
  const Twin x = make({nullptr, DType::kBF16, 3, 1024});
  for (size_t i = 0; i < matrices.size(); ++i) {
    const int64_t n = matrices[i].on_cpu.shape[0];
    const Twin out = make({nullptr, DType::kBF16, 3, n}, 0);
    cpu->matmul(out.on_cpu, x.on_cpu, *cpu->pack(matrices[i].on_cpu, DType::kBF16), {});
    gpu->matmul(out.on_gpu, x.on_gpu, *weights[i], {});
    expect_equal(out, fmt::format("weight {}", i));
  }
}

/// In a run, autotuning chooses a tile configuration for a shape. Here each configuration computes
/// every shape that it supports.
class GpuTiles : public GpuGemms {
 protected:
  using Epilogue = cuda::Epilogue;
  void SetUp() override {
    GpuGemms::SetUp();
    if (IsSkipped()) return;
    if (GetParam() == Kernels::kPortable) GTEST_SKIP() << "the portable kernels have no tiles";
    for (int config = 0; config < cuda::kNumTileConfigs; ++config)
      by_config.push_back(make_cuda_backend({.gemm = config}));
  }
  /// Calls body(name) for each configuration that supports the shape, with its backend as `gpu`.
  /// 78 thread blocks fit on every Hopper GPU at once.
  template <class Body>
  void for_configs(Epilogue epilogue, int64_t tokens, int64_t n, int64_t k, Body body) {
    cuda::GemmArgs args = {};
    args.num_tokens = static_cast<int>(tokens);
    args.n = static_cast<int>(n);
    args.k = static_cast<int>(k);
    args.epilogue = epilogue;
    for (int config = 0; config < cuda::kNumTileConfigs; ++config) {
      if (!cuda::supports_tile_gemm(args, DType::kBF16, 78, cuda::tile_config(config)) || skips())
        continue;
      std::swap(gpu, by_config[static_cast<size_t>(config)]);
      body(fmt::format("tile configuration {}: [{}, {}, {}]", config, tokens, n, k));
      std::swap(gpu, by_config[static_cast<size_t>(config)]);
    }
  }
  std::vector<std::unique_ptr<Backend>> by_config;
};

TEST_P(GpuTiles, OfAllConfigurations) {
  for (const auto& [n, k] : {std::pair{1024, 1032}, {200, 72}, {8, 640}, {6144, 256}}) {
    const Twin w = make({nullptr, DType::kBF16, 2 * n, k}, 0.05f);
    const Tensor first = w.on_cpu.rows(0, n);
    const WeightPtr wide_gpu = gpu->pack(w.on_cpu, DType::kBF16);
    const WeightPtr wide_cpu = cpu->pack(w.on_cpu, DType::kBF16);
    const WeightPtr on_gpu = gpu->pack(first, DType::kBF16);
    const WeightPtr on_cpu = cpu->pack(first, DType::kBF16);
    const Twin weight = make({nullptr, DType::kF32, k}), bias = make({nullptr, DType::kF32, n});
    for (const int64_t tokens : {17, 40, 65, 100, 128, 180, 256, 300, 2309}) {
      const Twin x = make({nullptr, DType::kBF16, tokens, k});
      const Twin hidden = make({nullptr, DType::kBF16, tokens, k}, 0);
      const Twin wide = make({nullptr, DType::kBF16, tokens, 2 * n}, 0);
      const Twin out = make({nullptr, DType::kBF16, tokens, n}, 0);
      const Twin sum = make({nullptr, DType::kBF16, tokens, n});
      const std::vector<char> nan(out.host.size(), '\xff'), old = sum.host;
      const Norm norm_gpu = {weight.on_gpu, 1e-6f}, norm_cpu = {weight.on_cpu, 1e-6f};
      cpu->matmul(out.on_cpu, x.on_cpu, *on_cpu, bias.on_cpu);
      for_configs(Epilogue::kStore, tokens, n, k, [&](const std::string& what) {
        gpu->upload(out.on_gpu.data, nan.data(), nan.size());
        gpu->matmul(out.on_gpu, x.on_gpu, *on_gpu, bias.on_gpu);
        expect_equal(out, what);
      });
      const Twin logits = make({nullptr, DType::kF32, tokens, n}, 0);
      const std::vector<char> no_logits(logits.host.size(), '\xff');
      cpu->matmul(logits.on_cpu, x.on_cpu, *on_cpu, {});
      for_configs(Epilogue::kStore, tokens, n, k, [&](const std::string& what) {
        gpu->upload(logits.on_gpu.data, no_logits.data(), no_logits.size());
        gpu->matmul(logits.on_gpu, x.on_gpu, *on_gpu, {});
        expect_equal(logits, "float32, " + what, 1e-4);
      });
      Residual cpu_sum(sum.on_cpu, out.on_cpu), cpu_x(x.on_cpu, hidden.on_cpu);
      cpu->add_matmul(cpu_sum, x.on_cpu, *on_cpu);
      for_configs(Epilogue::kAdd, tokens, n, k, [&](const std::string& what) {
        gpu->upload(sum.on_gpu.data, old.data(), old.size());
        Residual gpu_sum(sum.on_gpu, out.on_gpu);
        gpu->add_matmul(gpu_sum, x.on_gpu, *on_gpu);
        expect_equal(sum, "add, " + what);
      });
      cpu->norm_swiglu(out.on_cpu, cpu_x, norm_cpu, *wide_cpu, wide.on_cpu);
      for_configs(Epilogue::kSwiglu, tokens, n, k, [&](const std::string& what) {
        gpu->upload(out.on_gpu.data, nan.data(), nan.size());
        Residual gpu_x(x.on_gpu, hidden.on_gpu);
        gpu->norm_swiglu(out.on_gpu, gpu_x, norm_gpu, *wide_gpu, wide.on_gpu);
        expect_equal(out, "swiglu, " + what, 2e-2);
      });
    }
  }
}

/// The sums of split-K are added in a fixed order, and none is lost in any of many runs.
TEST_P(GpuTiles, SplitKIsDeterministic) {
  const int64_t n = 512, k = 4096, tokens = 100;
  const Twin w = make({nullptr, DType::kBF16, n, k}, 0.05f);
  const WeightPtr on_gpu = gpu->pack(w.on_cpu, DType::kBF16);
  const WeightPtr on_cpu = cpu->pack(w.on_cpu, DType::kBF16);
  // Two inputs in turns, so that the sums that the previous GEMM left in memory are wrong here.
  const std::array<Twin, 2> x = {make({nullptr, DType::kBF16, tokens, k}),
                                 make({nullptr, DType::kBF16, tokens, k})};
  const std::array<Twin, 2> out = {make({nullptr, DType::kBF16, tokens, n}, 0),
                                   make({nullptr, DType::kBF16, tokens, n}, 0)};
  for (size_t i = 0; i < 2; ++i) cpu->matmul(out[i].on_cpu, x[i].on_cpu, *on_cpu, {});
  for_configs(Epilogue::kStore, tokens, n, k, [&](const std::string& what) {
    std::array<std::vector<char>, 2> bits;
    for (size_t run = 0; run < 100; ++run) {
      const size_t i = run % 2;
      gpu->matmul(out[1 - i].on_gpu, x[1 - i].on_gpu, *on_gpu, {});
      gpu->matmul(out[i].on_gpu, x[i].on_gpu, *on_gpu, {});
      if (run < 2) {
        expect_equal(out[i], what);
        bits[i] = from_gpu(out[i].on_gpu);
      }
      ASSERT_EQ(from_gpu(out[i].on_gpu), bits[i]) << what << ", run " << run;
    }
  });
}

TEST_P(GpuRows, WeightsOfAnyDtypeAndStride) {
  for (const DType from : kTypesOfRows)
    for (const DType to : kTypesOfRows) {
      Twin w = make({nullptr, from, 64, 128});
      Tensor part = w.on_cpu;
      part.shape[1] = 96;  // strided: 96 of 128 columns
      const WeightPtr on_gpu = gpu->pack(part, to);
      const WeightPtr on_cpu = cpu->pack(part, to);
      const Twin ids = make(std::vector<int32_t>{0, 63, 5});
      const Twin out = make({nullptr, to, 3, 96}, 0);
      gpu->embed(out.on_gpu, *on_gpu, ids.on_gpu);
      cpu->embed(out.on_cpu, *on_cpu, ids.on_cpu);
      expect_equal(out, fmt::format("{} to {}", dtype_name(from), dtype_name(to)), 1e-9);
    }
}

NANOVLLM_BOTH_KERNELS(GpuRows);
NANOVLLM_BOTH_KERNELS(GpuGemms);
NANOVLLM_BOTH_KERNELS(GpuTiles);

}  // namespace
}  // namespace nanovllm
