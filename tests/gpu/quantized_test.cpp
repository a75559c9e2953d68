#include <fmt/format.h>

#include <array>
#include <cmath>

#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"
#include "quantized_weights.h"
#include "two_backends.h"

// GEMMs with quantized weights on the GPU, against the CPU with the dequantized weights.
namespace nanovllm {
namespace {

using Kind = QuantizedKind;

constexpr Kind kWeightKinds[] = {
    {QuantizedFormat::kE4M3, 128, 128},    {QuantizedFormat::kE4M3, 1, 0},
    {QuantizedFormat::kE4M3, 0, 0},        {QuantizedFormat::kInt4, 1, 128, true},
    {QuantizedFormat::kInt4, 1, 128},      {QuantizedFormat::kInt4, 1, 32, true},
    {QuantizedFormat::kInt4, 1, 64, true}, {QuantizedFormat::kInt4, 1, 0},
    {QuantizedFormat::kInt8, 1, 0},        {QuantizedFormat::kInt8, 1, 128, true},
    {QuantizedFormat::kInt8, 1, 32}};
constexpr Kind kActivationKinds[] = {{QuantizedFormat::kE4M3, 128, 128, false, true},
                                     {QuantizedFormat::kE4M3, 1, 0, false, true},
                                     {QuantizedFormat::kE4M3, 1, 128, false, true}};

class GpuQuantized : public TwoBackends {
 protected:
  WeightRows weight(const Kind& kind, int64_t n, int64_t k, bool f16_scales = false) {
    return random_quantized(kind, n, k, 0.05f, random, f16_scales ? Scales::kF16 : Scales::kBf16);
  }

  /// Sets rows of columns to numbers of E4M3 times a power of two for each 128 columns, or for each
  /// row. One of these columns is the largest number, so that quantizing changes nothing.
  void set_exact(Twin& twin, bool by_chunk, int64_t rows, int64_t columns) {
    const DType dtype = twin.on_cpu.dtype;
    for (int64_t row = 0; row < rows; ++row) {
      float scale = 0;
      for (int64_t column = 0; column < columns; ++column) {
        const bool begins = column % (by_chunk ? 128 : columns) == 0;
        if (begins) scale = std::exp2(-static_cast<float>(5 + random() % 5));
        const auto bits = static_cast<uint8_t>(begins ? 0x7e : random() % 0x7f);
        const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
        set(twin.host.data(), dtype, row * columns + column, sign * e4m3_to_f32(bits) * scale);
      }
    }
    gpu->upload(twin.on_gpu.data, twin.host.data(), twin.host.size());
  }
  /// Sets every element to 1 or -1, so that the norm is its weight, with these signs.
  void set_signs(Twin& twin) {
    for (int64_t i = 0; i < twin.on_cpu.size(); ++i)
      set(twin.host.data(), twin.on_cpu.dtype, i, random() % 2 == 0 ? 1.0f : -1.0f);
    gpu->upload(twin.on_gpu.data, twin.host.data(), twin.host.size());
  }

  /// If `kind` quantizes activations, they are such that this changes nothing.
  void expect_gemms(const Kind& kind, const std::string& name, DType dtype,
                    std::span<const WeightRows> parts, std::span<const int64_t> token_counts) {
    const int64_t k = parts.front().num_columns();
    int64_t n = 0;
    for (const WeightRows& part : parts) n += part.num_rows();
    const WeightPtr on_gpu = gpu->pack(parts, dtype);
    const WeightPtr on_cpu = cpu->pack(as_floats(parts), dtype);
    const Twin bias = make({nullptr, DType::kF32, n});
    Twin weight = make({nullptr, DType::kF32, k});
    const bool exact = kind.quantizes_activations, by_chunk = kind.scale_columns > 0;
    if (exact) set_exact(weight, by_chunk, 1, k);
    const Norm norm_gpu = {weight.on_gpu, 1e-6f}, norm_cpu = {weight.on_cpu, 1e-6f};
    for (const int64_t tokens : token_counts) {
      if (skips()) continue;
      const std::string what =
          fmt::format("{}, {} [{}, {}, {}]", name, dtype_name(dtype), tokens, n, k);
      Twin x = make({nullptr, dtype, tokens, k}), raw = make({nullptr, dtype, tokens, k});
      if (exact) {
        set_exact(x, by_chunk, tokens, k);
        set_signs(raw);
      }
      const Twin out = make({nullptr, dtype, tokens, n}, 0);
      const Twin hidden = make({nullptr, dtype, tokens, k}, 0);
      gpu->matmul(out.on_gpu, x.on_gpu, *on_gpu, bias.on_gpu);
      cpu->matmul(out.on_cpu, x.on_cpu, *on_cpu, bias.on_cpu);
      expect_equal(out, what);
      Residual gpu_x(raw.on_gpu, hidden.on_gpu), cpu_x(raw.on_cpu, hidden.on_cpu);
      gpu->norm_matmul(out.on_gpu, gpu_x, norm_gpu, *on_gpu, {});
      cpu->norm_matmul(out.on_cpu, cpu_x, norm_cpu, *on_cpu, {});
      expect_equal(out, "norm, " + what);
      const Twin residual = make({nullptr, dtype, tokens, n});
      const Twin delta = make({nullptr, dtype, tokens, n}, 0);
      Residual gpu_sum(residual.on_gpu, delta.on_gpu), cpu_sum(residual.on_cpu, delta.on_cpu);
      gpu->add_matmul(gpu_sum, x.on_gpu, *on_gpu);
      cpu->add_matmul(cpu_sum, x.on_cpu, *on_cpu);
      expect_equal(residual, "add, " + what);
      const Twin half = make({nullptr, dtype, tokens, n / 2}, 0);
      gpu->norm_swiglu(half.on_gpu, gpu_x, norm_gpu, *on_gpu, out.on_gpu);
      cpu->norm_swiglu(half.on_cpu, cpu_x, norm_cpu, *on_cpu, out.on_cpu);
      expect_equal(half, "swiglu, " + what, 2e-2);
      const Twin logits = make({nullptr, DType::kF32, tokens, n}, 0);
      gpu->matmul(logits.on_gpu, x.on_gpu, *on_gpu);
      cpu->matmul(logits.on_cpu, x.on_cpu, *on_cpu);
      expect_equal(logits, "float32 logits, " + what, dtype == DType::kBF16 ? 5e-3 : 1e-3);
    }
  }
};

constexpr int64_t kTokenCounts[] = {1, 2, 3, 8, 9, 15, 16, 17, 33, 64, 150};

TEST_P(GpuQuantized, OfAllFormats) {
  for (const Kind& kind : kWeightKinds)
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const auto& [n, k] : {std::pair{256, 256}, {192, 320}, {48, 1040}, {1552, 144}}) {
        const WeightRows parts[] = {weight(kind, n, k)};
        expect_gemms(kind, name_of(kind), dtype, parts, kTokenCounts);
      }
}

/// Many columns for each warp, and so many rows that thread blocks run in several waves.
TEST_P(GpuQuantized, OfModels) {
  for (const Kind& kind : {kWeightKinds[0], kWeightKinds[3], kWeightKinds[5], kWeightKinds[8]})
    for (const auto& [n, k] : {std::pair{8192, 2048}, {1024, 8192}, {2048, 9728}}) {
      const WeightRows parts[] = {weight(kind, n, k)};
      expect_gemms(kind, name_of(kind), DType::kBF16, parts, std::array<int64_t, 3>{1, 7, 16});
    }
}

/// Parts of a rank, whose borders may be within a block or a group, and parts that differ.
TEST_P(GpuQuantized, OfStackedParts) {
  const std::array<int64_t, 3> tokens = {2, 11, 20};
  for (const Kind& kind : kWeightKinds) {
    const WeightRows q = weight(kind, 320, 512), k = weight(kind, 192, 512);
    for (const auto& [rows, columns] : {std::pair{Range{0, 128}, Range{0, 512}},
                                        {Range{128, 64}, Range{256, 128}},
                                        {Range{16, 96}, Range{160, 96}},
                                        {Range{8, 104}, Range{48, 208}}}) {
      const WeightRows parts[] = {q.part(rows, columns), k.part(rows, columns)};
      expect_gemms(kind, "parts of " + name_of(kind), DType::kBF16, parts, tokens);
    }
  }
  const WeightRows block = weight(kWeightKinds[0], 128, 512),
                   row = weight(kWeightKinds[1], 64, 512);
  const Twin plain = make({nullptr, DType::kBF16, 64, 512}, 0.05f);
  const WeightRows int4 = weight(kWeightKinds[3], 64, 512);
  for (const WeightRows& other : {row, int4, WeightRows(plain.on_cpu)}) {
    const WeightRows parts[] = {block, other};
    expect_gemms(kWeightKinds[0], "unlike parts", DType::kBF16, parts, tokens);
  }
}

/// The activations are quantized if there are more than a few tokens.
TEST_P(GpuQuantized, OfQuantizedActivations) {
  for (const Kind& kind : kActivationKinds)
    for (const auto& [n, k] :
         {std::pair{256, 256}, {192, 320}, {48, 1040}, {1552, 144}, {384, 9728}}) {
      const WeightRows parts[] = {weight(kind, n, k)};
      expect_gemms(kind, name_of(kind), DType::kBF16, parts,
                   std::array<int64_t, 8>{1, 16, 17, 20, 33, 64, 131, 300});
    }
}

/// The shapes of models, which the kernels for Hopper share among all multiprocessors.
TEST_P(GpuQuantized, OfBatches) {
  for (const Kind& kind : kWeightKinds)
    for (const auto& [n, k] : {std::pair{4096, 1024}, {1024, 3072}, {6144, 1024}, {896, 4864}}) {
      const WeightRows parts[] = {weight(kind, n, k, /*f16_scales=*/k == 3072)};
      expect_gemms(kind, name_of(kind), DType::kBF16, parts,
                   std::array<int64_t, 7>{9, 17, 32, 33, 64, 65, 130});
    }
}

/// A norm between two GEMMs with quantized weights, of which the first may compute a part.
TEST_P(GpuQuantized, WithANormBetween) {
  for (const Kind& kind : {kWeightKinds[0], kWeightKinds[3], kWeightKinds[5], kWeightKinds[8],
                           kActivationKinds[0], kActivationKinds[1]})
    for (const auto& [first_k, hidden, n] : {std::array<int64_t, 3>{2048, 1024, 6144},
                                             {4864, 896, 1152},
                                             {5120, 2560, 3072},
                                             {512, 320, 640}}) {
      const double share = kind.quantizes_activations ? 0.05 : 0;
      const WeightRows parts[] = {weight(kind, hidden, first_k)};
      const WeightRows next_parts[] = {weight(kind, n, hidden)};
      const WeightPtr w_gpu = gpu->pack(parts, DType::kBF16);
      const WeightPtr w_cpu = cpu->pack(as_floats(parts), DType::kBF16);
      const WeightPtr next_gpu = gpu->pack(next_parts, DType::kBF16);
      const WeightPtr next_cpu = cpu->pack(as_floats(next_parts), DType::kBF16);
      const Twin weight = make({nullptr, DType::kF32, hidden});
      const Norm on_gpu = {weight.on_gpu, 1e-6f}, on_cpu = {weight.on_cpu, 1e-6f};
      for (const int64_t tokens : {3, 9, 17, 32, 50, 64, 65, 257}) {
        if (skips()) continue;
        const std::string what =
            fmt::format("{} [{}, {}, {}, {}]", name_of(kind), tokens, first_k, hidden, n);
        const Twin x = make({nullptr, DType::kBF16, tokens, first_k}, 0.3f);
        const Twin residual = make({nullptr, DType::kBF16, tokens, hidden});
        const Twin scratch = make({nullptr, DType::kBF16, tokens, hidden}, 0);
        const Twin out = make({nullptr, DType::kBF16, tokens, n}, 0);
        const Twin half = make({nullptr, DType::kBF16, tokens, n / 2}, 0);
        Residual gpu_sum(residual.on_gpu, scratch.on_gpu), cpu_sum(residual.on_cpu, scratch.on_cpu);
        for (const bool swiglu : {false, true}) {
          gpu->add_matmul(gpu_sum, x.on_gpu, *w_gpu, on_gpu);
          cpu->add_matmul(cpu_sum, x.on_cpu, *w_cpu, on_cpu);
          expect_equal(residual, "residual, " + what, share);
          if (swiglu) {
            gpu->norm_swiglu(half.on_gpu, gpu_sum, on_gpu, *next_gpu, out.on_gpu);
            cpu->norm_swiglu(half.on_cpu, cpu_sum, on_cpu, *next_cpu, out.on_cpu);
            expect_equal(half, "swiglu, " + what, share > 0 ? 2 * share : 2e-2);
          } else {
            gpu->norm_matmul(out.on_gpu, gpu_sum, on_gpu, *next_gpu);
            cpu->norm_matmul(out.on_cpu, cpu_sum, on_cpu, *next_cpu);
            expect_equal(out, "norm, " + what, share);
          }
        }
      }
    }
}

/// Each tile configuration for quantized weights. In a run autotuning chooses one.
class GpuQuantizedTiles : public GpuQuantized {
 protected:
  void SetUp() override {
    GpuQuantized::SetUp();
    if (IsSkipped()) return;
    if (GetParam() == Kernels::kPortable) GTEST_SKIP() << "the portable kernels have no tiles";
    for (int config = 0; config < cuda::kNumTileConfigs; ++config)
      if (cuda::dequantizes(cuda::tile_config(config)) ||
          cuda::multiplies_e4m3(cuda::tile_config(config)))
        by_config.emplace_back(config, make_cuda_backend({.gemm = config}));
  }
  /// Calls body(name) for each configuration that supports the shape, with its backend as `gpu`.
  template <class Body>
  void for_configs(const Kind& kind, cuda::Epilogue epilogue, int64_t tokens, int64_t n, int64_t k,
                   Body body) {
    cuda::GemmArgs args = {};
    args.num_tokens = static_cast<int>(tokens);
    args.n = static_cast<int>(n);
    args.k = static_cast<int>(k);
    args.epilogue = epilogue;
    // E4M3 by E4M3 needs scales of blocks, and gates and ups begin with a block. Of up to 64 tokens
    // other kernels compute it.
    if (kind.quantizes_activations &&
        (k <= 128 || (epilogue == cuda::Epilogue::kSwiglu && n % 128 != 0) || tokens <= 64))
      return;
    for (auto& [config, backend] : by_config) {
      // 78 thread blocks fit on every Hopper GPU at once. A part of k has at least 128 columns.
      const cuda::TileConfig tile = cuda::tile_config(config);
      const bool is_compiled =
          kind.quantizes_activations ? multiplies_e4m3(tile) : dequantizes(tile);
      if (!is_compiled || !cuda::supports_tile_gemm(args, DType::kBF16, 78, tile) ||
          (tile.split > 1 && k <= 128 * (tile.split - 1)) || skips())
        continue;
      std::swap(gpu, backend);
      body(fmt::format("tile configuration {}: [{}, {}, {}]", config, tokens, n, k));
      std::swap(gpu, backend);
    }
  }
  std::vector<std::pair<int, std::unique_ptr<Backend>>> by_config;
};

/// x selects columns of w, so that every element of w comes out unchanged at its place. Integers
/// are the digits of the row and of the column.
TEST_P(GpuQuantizedTiles, EveryElementIsAtItsPlace) {
  const auto one = [] { return 1.0f; };
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{256, 256}, {208, 400}, {128, 64}})
    for (const Kind& kind : {Kind{QuantizedFormat::kE4M3, 128, 128},
                             {QuantizedFormat::kE4M3, 1, 0},
                             {QuantizedFormat::kInt4, 1, 128},
                             {QuantizedFormat::kInt4, 1, 32},
                             {QuantizedFormat::kInt8, 1, 0},
                             {QuantizedFormat::kInt8, 1, 32}})
      for (int digit = 0; digit < 6; ++digit) {
        const auto value = [&](int64_t row, int64_t column) -> uint8_t {
          const int64_t i = digit < 3 ? column : row;
          const auto of_16 = static_cast<uint8_t>(i >> (4 * (digit % 3)) & 15);
          if (kind.format == QuantizedFormat::kInt4) return of_16;
          if (kind.format == QuantizedFormat::kInt8) return static_cast<uint8_t>(of_16 * 17);
          return static_cast<uint8_t>(0x30 + of_16);
        };
        const WeightRows parts[] = {quantized_weight(kind, n, k, value, one)};
        const WeightPtr w = gpu->pack(parts, DType::kBF16);
        std::vector<float> expected(static_cast<size_t>(n * k));
        parts[0].read(0, n, expected.data());
        const auto expect_columns = [&](int64_t first, int64_t tokens, const std::string& what) {
          Twin x = make({nullptr, DType::kBF16, tokens, k});
          const Twin out = make({nullptr, DType::kBF16, tokens, n}, 0);
          for (int64_t i = 0; i < tokens * k; ++i)
            set(x.host.data(), DType::kBF16, i, i % k == first + i / k ? 1 : 0);
          gpu->upload(x.on_gpu.data, x.host.data(), x.host.size());
          gpu->matmul(out.on_gpu, x.on_gpu, *w, {});
          const std::vector<char> bytes = from_gpu(out.on_gpu);
          int64_t wrong = 0;
          for (int64_t t = 0; t < tokens && first + t < k; ++t)
            for (int64_t row = 0; row < n; ++row)
              wrong += get(bytes.data(), DType::kBF16, t * n + row) !=
                       expected[static_cast<size_t>(row * k + first + t)];
          EXPECT_EQ(wrong, 0) << name_of(kind) << ", digit " << digit << ", " << what;
        };
        for (const int64_t tokens : {32, 64})  // swap-AB
          for (int64_t first = 0; first < k; first += tokens)
            expect_columns(first, tokens, fmt::format("{} tokens from {}", tokens, first));
        for_configs(kind, cuda::Epilogue::kStore, k, n, k,
                    [&](const std::string& what) { expect_columns(0, k, what); });
      }
}

/// All numbers of E4M3 except NaN, also the subnormal ones.
TEST_P(GpuQuantizedTiles, EveryNumberOfE4M3) {
  const int64_t n = 256, k = 256;
  const Kind kind = {QuantizedFormat::kE4M3, 1, 0};
  const auto number = [](int64_t row, int64_t column) -> uint8_t {
    const auto bits = static_cast<uint8_t>((row + column) & 255);
    return (bits & 127) == 127 ? 0 : bits;
  };
  const WeightRows parts[] = {quantized_weight(kind, n, k, number, [] { return 0.5f; })};
  const WeightPtr w = gpu->pack(parts, DType::kBF16);
  for (const int64_t tokens : {32, 64, 128, 256}) {
    Twin x = make({nullptr, DType::kBF16, tokens, k});
    for (int64_t i = 0; i < tokens * k; ++i)
      set(x.host.data(), DType::kBF16, i, i % k == i / k ? 1 : 0);
    gpu->upload(x.on_gpu.data, x.host.data(), x.host.size());
    const Twin out = make({nullptr, DType::kBF16, tokens, n}, 0);
    const auto expect_numbers = [&](const std::string& what) {
      gpu->matmul(out.on_gpu, x.on_gpu, *w, {});
      const std::vector<char> bytes = from_gpu(out.on_gpu);
      for (int64_t i = 0; i < tokens * n; ++i)
        ASSERT_EQ(get(bytes.data(), DType::kBF16, i), 0.5f * e4m3_to_f32(number(i % n, i / n)))
            << what << ", number " << int{number(i % n, i / n)};
    };
    expect_numbers(fmt::format("{} tokens", tokens));
    for_configs(kind, cuda::Epilogue::kStore, tokens, n, k, expect_numbers);
  }
}

TEST_P(GpuQuantizedTiles, OfAllConfigurations) {
  using cuda::Epilogue;
  std::vector<Kind> kinds(std::begin(kWeightKinds), std::end(kWeightKinds));
  kinds.push_back(kActivationKinds[0]);
  for (const Kind& kind : kinds)
    for (const auto& [n, k] : {std::pair{1024, 1040}, {208, 80}, {16, 640}, {3072, 256}}) {
      const bool exact = kind.quantizes_activations;

      const WeightRows wide = weight(kind, 2 * n, k, /*f16_scales=*/n == 208);
      const WeightRows wide_parts[] = {wide}, parts[] = {wide.part({0, n}, {0, k})};
      const WeightPtr wide_gpu = gpu->pack(wide_parts, DType::kBF16);
      const WeightPtr wide_cpu = cpu->pack(as_floats(wide_parts), DType::kBF16);
      const WeightPtr on_gpu = gpu->pack(parts, DType::kBF16);
      const WeightPtr on_cpu = cpu->pack(as_floats(parts), DType::kBF16);
      Twin weight = make({nullptr, DType::kF32, k});
      if (exact) set_exact(weight, true, 1, k);
      const Twin bias = make({nullptr, DType::kF32, n});
      const Norm norm_gpu = {weight.on_gpu, 1e-6f}, norm_cpu = {weight.on_cpu, 1e-6f};
      for (const int64_t tokens : {9, 40, 65, 130, 256, 700}) {
        Twin x = make({nullptr, DType::kBF16, tokens, k});
        Twin raw = make({nullptr, DType::kBF16, tokens, k});
        if (exact) {
          set_exact(x, true, tokens, k);
          set_signs(raw);
        }
        const Twin hidden = make({nullptr, DType::kBF16, tokens, k}, 0);
        const Twin scratch = make({nullptr, DType::kBF16, tokens, 2 * n}, 0);
        const Twin out = make({nullptr, DType::kBF16, tokens, n}, 0);
        const Twin sum = make({nullptr, DType::kBF16, tokens, n});
        const std::vector<char> nan(out.host.size(), '\xff'), old = sum.host;
        cpu->matmul(out.on_cpu, x.on_cpu, *on_cpu, bias.on_cpu);
        for_configs(kind, Epilogue::kStore, tokens, n, k, [&](const std::string& what) {
          gpu->upload(out.on_gpu.data, nan.data(), nan.size());
          gpu->matmul(out.on_gpu, x.on_gpu, *on_gpu, bias.on_gpu);
          expect_equal(out, name_of(kind) + ", " + what);
        });
        Residual cpu_x(raw.on_cpu, hidden.on_cpu), cpu_sum(sum.on_cpu, out.on_cpu);
        cpu->add_matmul(cpu_sum, x.on_cpu, *on_cpu);
        for_configs(kind, Epilogue::kAdd, tokens, n, k, [&](const std::string& what) {
          gpu->upload(sum.on_gpu.data, old.data(), old.size());
          Residual gpu_sum(sum.on_gpu, out.on_gpu);
          gpu->add_matmul(gpu_sum, x.on_gpu, *on_gpu);
          expect_equal(sum, name_of(kind) + ", add, " + what);
        });
        cpu->norm_swiglu(out.on_cpu, cpu_x, norm_cpu, *wide_cpu, scratch.on_cpu);
        for_configs(kind, Epilogue::kSwiglu, tokens, n, k, [&](const std::string& what) {
          gpu->upload(out.on_gpu.data, nan.data(), nan.size());
          Residual gpu_x(raw.on_gpu, hidden.on_gpu);
          gpu->norm_swiglu(out.on_gpu, gpu_x, norm_gpu, *wide_gpu, scratch.on_gpu);
          expect_equal(out, name_of(kind) + ", swiglu, " + what, 2e-2);
        });
      }
    }
}

NANOVLLM_BOTH_KERNELS(GpuQuantized);
NANOVLLM_BOTH_KERNELS(GpuQuantizedTiles);

}  // namespace
}  // namespace nanovllm
