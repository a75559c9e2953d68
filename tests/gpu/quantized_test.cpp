#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "two_backends.h"

// GEMMs with quantized weights on the GPU, against the CPU with the dequantized weights.
namespace nanovllm {
namespace {

struct Kind {
  QuantizedFormat format;
  int64_t scale_rows, scale_columns;  // 0: all
  bool has_zeros = false;
  bool quantizes_activations = false;
};

std::string name_of(const Kind& kind) {
  constexpr const char* kNames[] = {"E4M3", "int8", "int4"};
  return fmt::format("{}, scales of {} x {}{}{}", kNames[static_cast<size_t>(kind.format)],
                     kind.scale_rows, kind.scale_columns, kind.has_zeros ? ", zero points" : "",
                     kind.quantizes_activations ? ", activations too" : "");
}

constexpr Kind kKinds[] = {
    {QuantizedFormat::kE4M3, 128, 128},     {QuantizedFormat::kE4M3, 1, 0},
    {QuantizedFormat::kE4M3, 0, 0},         {QuantizedFormat::kInt4, 1, 128, true},
    {QuantizedFormat::kInt4, 1, 128},       {QuantizedFormat::kInt4, 1, 32, true},
    {QuantizedFormat::kInt4, 1, 0},         {QuantizedFormat::kInt8, 1, 0},
    {QuantizedFormat::kInt8, 1, 128, true}, {QuantizedFormat::kInt8, 1, 32}};
constexpr Kind kActivationKinds[] = {{QuantizedFormat::kE4M3, 128, 128, false, true},
                                     {QuantizedFormat::kE4M3, 1, 0, false, true},
                                     {QuantizedFormat::kE4M3, 1, 128, false, true}};

class GpuQuantized : public TwoBackends {
 protected:
  /// A weight with random values, of about `deviation`.
  WeightRows weight(const Kind& kind, int64_t n, int64_t k, float deviation = 0.05f) {
    QuantizedMatrix m{.format = kind.format,
                      .num_rows = n,
                      .num_columns = k,
                      .scale_rows = kind.scale_rows > 0 ? kind.scale_rows : n,
                      .scale_columns = kind.scale_columns > 0 ? kind.scale_columns : k};
    const bool is_e4m3 = kind.format == QuantizedFormat::kE4M3;
    const bool is_int4 = kind.format == QuantizedFormat::kInt4;
    std::uniform_real_distribution<float> factor(0.5f, 2);
    std::uniform_int_distribution<int> zero(is_int4 ? 4 : 100, is_int4 ? 11 : 160);
    const float typical = is_e4m3 ? 8 : is_int4 ? 4 : 70;  // of a value
    for (int64_t i = 0; i < m.num_scales(); ++i) {
      // As checkpoints have them, in bfloat16.
      m.scales.push_back(bf16_to_f32(f32_to_bf16(deviation / typical * factor(random))));
      if (kind.has_zeros) m.zeros.push_back(static_cast<int16_t>(zero(random)));
    }
    m.quantizes_activations = kind.quantizes_activations;
    auto values = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(n * k));
    std::normal_distribution<float> normal(0, typical);
    for (uint8_t& value : *values)
      value = is_e4m3 ? f32_to_e4m3(normal(random))
                      : static_cast<uint8_t>(random() & (is_int4 ? 15 : 255));
    m.values = [values, k](Range rows, Range columns, uint8_t* to) {
      for (int64_t row = 0; row < rows.count; ++row)
        to =
            std::copy_n(values->data() + (rows.first + row) * k + columns.first, columns.count, to);
    };
    return {n, k, [m] { return m; }};
  }
  /// The same weights without their quantized form, for the CPU.
  static std::vector<WeightRows> floats(std::span<const WeightRows> parts) {
    std::vector<WeightRows> out;
    for (const WeightRows& part : parts) {
      if (part.quantized().matrix == nullptr) out.push_back(part);
      else
        out.emplace_back(DType::kF32, part.num_rows(), part.num_columns(),
                         [part](int64_t first, int64_t count, void* to) {
                           part.read(first / part.num_columns(), count / part.num_columns(), to);
                         });
    }
    return out;
  }

  void expect_gemms(const std::string& name, DType dtype, std::span<const WeightRows> parts,
                    std::span<const int64_t> token_counts, double share = 0) {
    const int64_t k = parts.front().num_columns();
    int64_t n = 0;
    for (const WeightRows& part : parts) n += part.num_rows();
    const WeightPtr on_gpu = gpu->pack(parts, dtype);
    const WeightPtr on_cpu = cpu->pack(floats(parts), dtype);
    const Twin bias = make({nullptr, DType::kF32, n}), weight = make({nullptr, DType::kF32, k});
    const Norm norm_gpu = {weight.on_gpu, 1e-6f}, norm_cpu = {weight.on_cpu, 1e-6f};
    for (const int64_t tokens : token_counts) {
      if (skips()) continue;
      const std::string what =
          fmt::format("{}, {} [{}, {}, {}]", name, dtype_name(dtype), tokens, n, k);
      const Twin x = make({nullptr, dtype, tokens, k}), out = make({nullptr, dtype, tokens, n}, 0);
      const Twin hidden = make({nullptr, dtype, tokens, k}, 0);
      gpu->matmul(out.on_gpu, x.on_gpu, *on_gpu, bias.on_gpu);
      cpu->matmul(out.on_cpu, x.on_cpu, *on_cpu, bias.on_cpu);
      expect_equal(out, what, share);
      Residual gpu_x(x.on_gpu, hidden.on_gpu), cpu_x(x.on_cpu, hidden.on_cpu);
      gpu->norm_matmul(out.on_gpu, gpu_x, norm_gpu, *on_gpu, {});
      cpu->norm_matmul(out.on_cpu, cpu_x, norm_cpu, *on_cpu, {});
      expect_equal(out, "norm, " + what, share);
      const Twin residual = make({nullptr, dtype, tokens, n});
      const Twin delta = make({nullptr, dtype, tokens, n}, 0);
      Residual gpu_sum(residual.on_gpu, delta.on_gpu), cpu_sum(residual.on_cpu, delta.on_cpu);
      gpu->add_matmul(gpu_sum, x.on_gpu, *on_gpu);
      cpu->add_matmul(cpu_sum, x.on_cpu, *on_cpu);
      expect_equal(residual, "add, " + what, share);
      const Twin half = make({nullptr, dtype, tokens, n / 2}, 0);
      gpu->norm_swiglu(half.on_gpu, gpu_x, norm_gpu, *on_gpu, out.on_gpu);
      cpu->norm_swiglu(half.on_cpu, cpu_x, norm_cpu, *on_cpu, out.on_cpu);
      expect_equal(half, "swiglu, " + what, share > 0 ? 2 * share : 2e-2);
      const Twin logits = make({nullptr, DType::kF32, tokens, n}, 0);
      gpu->matmul(logits.on_gpu, x.on_gpu, *on_gpu);
      cpu->matmul(logits.on_cpu, x.on_cpu, *on_cpu);
      expect_equal(logits, "float32 logits, " + what,
                   share > 0               ? share
                   : dtype == DType::kBF16 ? 5e-3
                                           : 1e-3);
    }
  }
};

constexpr int64_t kTokens[] = {1, 2, 3, 8, 9, 15, 16, 17, 33, 64, 150};

TEST_P(GpuQuantized, OfAllFormats) {
  for (const Kind& kind : kKinds)
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const auto& [n, k] : {std::pair{256, 256}, {192, 320}, {48, 1040}, {1552, 144}}) {
        const WeightRows parts[] = {weight(kind, n, k)};
        expect_gemms(name_of(kind), dtype, parts, kTokens);
      }
}

/// Many columns for each warp, and so many rows that thread blocks run in several waves.
TEST_P(GpuQuantized, OfModels) {
  for (const Kind& kind : {kKinds[0], kKinds[3], kKinds[5], kKinds[7]})
    for (const auto& [n, k] : {std::pair{8192, 2048}, {1024, 8192}, {2048, 9728}}) {
      const WeightRows parts[] = {weight(kind, n, k)};
      expect_gemms(name_of(kind), DType::kBF16, parts, std::array<int64_t, 3>{1, 7, 16});
    }
}

/// Parts of a rank, whose borders may be within a block or a group, and parts that differ.
TEST_P(GpuQuantized, OfStackedParts) {
  const std::array<int64_t, 3> tokens = {2, 11, 20};
  for (const Kind& kind : kKinds) {
    const WeightRows q = weight(kind, 320, 512), k = weight(kind, 192, 512);
    for (const auto& [rows, columns] : {std::pair{Range{0, 128}, Range{0, 512}},
                                        {Range{128, 64}, Range{256, 128}},
                                        {Range{16, 96}, Range{160, 96}},
                                        {Range{8, 104}, Range{48, 208}}}) {
      const WeightRows parts[] = {q.part(rows, columns), k.part(rows, columns)};
      expect_gemms("parts of " + name_of(kind), DType::kBF16, parts, tokens);
    }
  }
  const WeightRows block = weight(kKinds[0], 128, 512), row = weight(kKinds[1], 64, 512);
  const Twin plain = make({nullptr, DType::kBF16, 64, 512}, 0.05f);
  const WeightRows int4 = weight(kKinds[3], 64, 512);
  for (const WeightRows& other : {row, int4, WeightRows(plain.on_cpu)}) {
    const WeightRows parts[] = {block, other};
    expect_gemms("unlike parts", DType::kBF16, parts, tokens);
  }
}

/// The activations are quantized if there are more than a few tokens.
TEST_P(GpuQuantized, OfQuantizedActivations) {
  for (const Kind& kind : kActivationKinds)
    for (const auto& [n, k] : {std::pair{256, 256}, {192, 320}, {48, 1040}, {1552, 144}}) {
      const WeightRows parts[] = {weight(kind, n, k)};
      expect_gemms(name_of(kind), DType::kBF16, parts,
                   std::array<int64_t, 7>{1, 16, 17, 20, 64, 131, 300}, 0.05);
    }
}

NANOVLLM_BOTH_KERNELS(GpuQuantized);

}  // namespace
}  // namespace nanovllm
