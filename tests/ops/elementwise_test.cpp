#include "nanovllm/ops/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "nanovllm/ops/cpu/attention.h"
#include "nanovllm/ops/cpu/kernels/elementwise.h"
#include "tests/ops/matrix.h"

namespace nanovllm::cpu {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

/// Half an ulp of a value of that dtype, plus the error of float32 arithmetic.
double tolerance(DType dtype, double value) {
  const double relative = dtype == DType::kF32 ? 2e-6 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
  return std::abs(value) * (relative + 2e-6) + 1e-6;
}

std::string name(Isa isa, DType dtype) {
  return std::string(isa_name(isa)) + " " + dtype_name(dtype);
}

Tensor ints(std::vector<int32_t>& values) {
  return {values.data(), DType::kI32, static_cast<int64_t>(values.size())};
}

TEST(Elementwise, AddRoundsTheSum) {
  for (Isa isa : isas())
    for (DType dtype : kDTypes)
      for (int64_t n : {1, 8, 40, 172, 1024})
        for (int64_t rows : {1, 3, 130}) {
          SCOPED_TRACE(name(isa, dtype) + " " + std::to_string(n));
          Matrix a = random_matrix(dtype, rows, n, 1), b = random_matrix(dtype, rows, n, 2);
          Matrix sum(dtype, rows, n);
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < n; ++c) sum.set(r, c, a.at(r, c) + b.at(r, c));
          add(a.tensor, b.tensor, isa);
          EXPECT_EQ(a.bytes, sum.bytes);
        }
}

/// What the norms of q and k over all heads give, computed by one rank or by two, of which the
/// second one has a KV head that the first one counts.
TEST(Elementwise, WholeNormsAreThoseOfTheHeadsOfAllRanks) {
  constexpr int64_t kDim = 24, kRows = 5;
  for (Isa isa : isas())
    for (DType dtype : kDTypes)
      for (const bool is_split : {false, true}) {
        SCOPED_TRACE(name(isa, dtype) + (is_split ? ", two ranks" : ", one rank"));
        // Query heads 0 to 3 and one KV head; the second rank has the KV head too.
        const Matrix q = random_matrix(dtype, kRows, 4 * kDim, 1);
        const Matrix k = random_matrix(dtype, kRows, kDim, 2);
        const Matrix weights = random_matrix(DType::kF32, 1, 5 * kDim, 3);
        const int64_t world = is_split ? 2 : 1, q_size = 4 * kDim / world;
        std::vector<Matrix> qkv, squares;
        std::vector<WholeNorms> norms;
        std::vector<float> none(kDim, 0), all(kDim, 1);
        for (int64_t rank = 0; rank < world; ++rank) {
          qkv.emplace_back(dtype, kRows, q_size + 2 * kDim);
          for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t c = 0; c < q_size; ++c) qkv.back().set(r, c, q.at(r, rank * q_size + c));
            for (int64_t c = 0; c < kDim; ++c) {
              qkv.back().set(r, q_size + c, k.at(r, c));
              qkv.back().set(r, q_size + kDim + c, 7);
            }
          }
          auto* const w = weights.tensor.as<float>();
          norms.push_back(
              {.q_weight = Tensor(w + rank * q_size, DType::kF32, q_size),
               .k_weight = Tensor(w + 4 * kDim, DType::kF32, kDim),
               .k_counted =
                   is_split ? Tensor((rank == 0 ? all : none).data(), DType::kF32, kDim) : Tensor(),
               .q_columns = 4 * kDim,
               .k_columns = kDim,
               .eps = 1e-5f});
          squares.emplace_back(DType::kF32, kRows, 4);
          sum_squares(squares.back().tensor, qkv.back().tensor, norms.back(), isa);
        }
        if (is_split) {  // the all-reduce
          add(squares[0].tensor, squares[1].tensor, isa);
          squares[1].bytes = squares[0].bytes;
          squares[1].tensor.data = squares[1].bytes.data();
        }
        for (int64_t rank = 0; rank < world; ++rank) {
          const auto i = static_cast<size_t>(rank);
          scale_by_squares(qkv[i].tensor, squares[i].tensor, norms[i], isa);
          for (int64_t r = 0; r < kRows; ++r) {
            double of_q = 0, of_k = 0;
            for (int64_t c = 0; c < 4 * kDim; ++c) of_q += double{q.at(r, c)} * double{q.at(r, c)};
            for (int64_t c = 0; c < kDim; ++c) of_k += double{k.at(r, c)} * double{k.at(r, c)};
            for (int64_t c = 0; c < q_size + 2 * kDim; ++c) {
              const int64_t in_k = c - q_size;
              const double want = in_k >= kDim ? 7
                                  : in_k >= 0  ? k.at(r, in_k) / std::sqrt(of_k / kDim + 1e-5) *
                                                    weights.at(0, 4 * kDim + in_k)
                                              : q.at(r, rank * q_size + c) /
                                                    std::sqrt(of_q / (4 * kDim) + 1e-5) *
                                                    weights.at(0, rank * q_size + c);
              ASSERT_NEAR(qkv[i].at(r, c), want, tolerance(dtype, want)) << r << ' ' << c;
            }
          }
        }
      }
}

TEST(Elementwise, RmsNormScalesAndLeavesItsInputAsItIs) {
  for (Isa isa : isas())
    for (DType dtype : kDTypes)
      for (int64_t n : {1, 8, 40, 172, 1024})
        for (int64_t rows : {1, 3, 130}) {
          SCOPED_TRACE(name(isa, dtype) + " " + std::to_string(n));
          Matrix x = random_matrix(dtype, rows, n, 1), out(dtype, rows, n);
          const Matrix before = random_matrix(dtype, rows, n, 1);
          const Matrix weight = random_matrix(DType::kF32, 1, n, 3);
          rms_norm(out.tensor, x.tensor, {Tensor(weight.tensor.data, DType::kF32, n), 1e-5f}, isa);
          EXPECT_EQ(x.bytes, before.bytes);
          for (int64_t r = 0; r < rows; ++r) {
            double squares = 0;
            for (int64_t c = 0; c < n; ++c) squares += double{x.at(r, c)} * double{x.at(r, c)};
            for (int64_t c = 0; c < n; ++c) {
              const double expected =
                  x.at(r, c) / std::sqrt(squares / static_cast<double>(n) + 1e-5) * weight.at(0, c);
              ASSERT_NEAR(out.at(r, c), expected, tolerance(dtype, expected));
            }
          }
        }
}

TEST(Elementwise, SiluMul) {
  for (Isa isa : isas())
    for (DType dtype : kDTypes)
      for (int64_t n : {1, 12, 172, 768}) {
        Matrix gate_up = random_matrix(dtype, 60, 2 * n, 1), out(dtype, 60, n);
        for (int64_t r = 0; r < 60; ++r) gate_up.set(r, 0, static_cast<float>(r - 30) * 7);
        silu_mul(out.tensor, gate_up.tensor, isa);
        for (int64_t r = 0; r < 60; ++r)
          for (int64_t c = 0; c < n; ++c) {
            const double gate = gate_up.at(r, c), up = gate_up.at(r, n + c);
            const double expected = gate / (1 + std::exp(-gate)) * up;
            ASSERT_NEAR(out.at(r, c), expected, tolerance(dtype, expected)) << name(isa, dtype);
          }
      }
}

TEST(Elementwise, SiluMulKeepsNotANumber) {
  for (Isa isa : isas()) {
    Matrix gate_up(DType::kF32, 1, 2), out(DType::kF32, 1, 1);
    gate_up.set(0, 0, std::numeric_limits<float>::quiet_NaN());
    gate_up.set(0, 1, 1);
    silu_mul(out.tensor, gate_up.tensor, isa);
    EXPECT_TRUE(std::isnan(out.at(0, 0))) << isa_name(isa);
  }
}

TEST(Elementwise, EmbedConvertsEveryBitPatternAsScalarCodeDoes) {
  // Parts of several dtypes: rows 0 to 255 contain every bfloat16 value, the next 256 every float16
  // value, and the others float32 values with random bits, some of them near the limits of float16.
  Matrix bf16(DType::kBF16, 256, 256), f16(DType::kF16, 256, 256), f32(DType::kF32, 256, 256);
  std::mt19937 generator(1);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 0x10000; ++i) {
    bf16.tensor.as<uint16_t>()[i] = f16.tensor.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    const auto bits = static_cast<uint32_t>(generator());
    const uint32_t near_half = 0x32000000 + bits % (0x48000000 - 0x32000000);
    f32.tensor.as<uint32_t>()[i] = i % 2 == 0 ? bits : near_half | (bits & 0x80000000);
    if (i < 768) ids.push_back(i);
  }
  const WeightRows parts[] = {bf16.tensor, f16.tensor, f32.tensor};
  for (Isa isa : isas())
    for (DType dtype : kDTypes) {
      Gemm gemm(isa, 1);
      const auto table = gemm.pack(parts, dtype);
      Matrix out(dtype, 768, 256), expected(dtype, 768, 256);
      embed(out.tensor, *table, ints(ids), isa);
      for (int64_t r = 0; r < 768; ++r)
        for (int64_t c = 0; c < 256; ++c) {
          const Matrix& part = r < 256 ? bf16 : r < 512 ? f16 : f32;
          const float value = part.at(r % 256, c);
          expected.set(r, c, value);
          if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(out.at(r, c))) << name(isa, dtype);
          } else {
            ASSERT_EQ(out.at(r, c), expected.at(r, c)) << name(isa, dtype) << " of " << value;
          }
        }
    }
}

TEST(Elementwise, EmbedRefusesAnIdOutsideTheTable) {
  Matrix w(DType::kF32, 4, 8), out(DType::kF32, 1, 8);
  const auto table = Gemm(best_isa(), 1).pack(w.tensor, DType::kF32);
  for (int32_t id : {-1, 4}) {
    std::vector<int32_t> ids = {id};
    EXPECT_THROW(embed(out.tensor, *table, ints(ids), best_isa()), std::logic_error);
  }
}

TEST(Elementwise, GatherRowsTakesARowAgain) {
  const Matrix x = random_matrix(DType::kBF16, 5, 24, 1, 30);
  std::vector<int32_t> rows = {4, 0, 4};
  Matrix out(DType::kBF16, 3, 24);
  gather_rows(out.tensor, x.tensor, ints(rows));
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 24; ++c) ASSERT_EQ(out.at(r, c), x.at(rows[static_cast<size_t>(r)], c));
}

/// A KV cache in which every byte is 0x5a, with access to the element at a logical position.
struct Cache {
  std::vector<char> bytes;
  KvCache kv;
  explicit Cache(KvCache shape) : kv(shape) {
    bytes.assign(static_cast<size_t>(kv.num_blocks) * kv.block_bytes(), 0x5a);
    kv.data = bytes.data();
  }
  float at(int64_t layer, int64_t slot, int64_t value_not_key, int64_t head, int64_t i) const {
    char* const entry = kv_entry(kv, layer, slot / kv.block_size, value_not_key, head);
    char* const key = kv_key(kv, entry, slot % kv.block_size);
    if (kv.dtype == DType::kF32) return reinterpret_cast<const float*>(key)[i];
    if (kv.dtype == DType::kE4M3)
      return e4m3_to_f32(static_cast<uint8_t>(key[i])) *
             *kv_key_scale(kv, entry, slot % kv.block_size);
    const uint16_t bits = reinterpret_cast<const uint16_t*>(key)[i];
    return kv.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
};

/// What a cache of e4m3 has of x.
std::vector<double> quantized(const std::vector<float>& x) {
  float largest = 0x1p-60f;
  for (const float v : x) largest = std::max(largest, std::abs(v));
  std::vector<double> y;
  for (const float v : x)
    y.push_back(e4m3_to_f32(f32_to_e4m3(v * (448 / largest))) * (largest / 448));
  return y;
}

/// The optional RMSNorm and the rotation of one head, in double.
std::vector<double> rotated(const Matrix& x, int64_t row, int64_t first, int64_t head_dim,
                            const float* norm, float eps, const Matrix& cos, const Matrix& sin,
                            int64_t position) {
  std::vector<double> head(static_cast<size_t>(head_dim)), result(head.size());
  double squares = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    head[i] = x.at(row, first + static_cast<int64_t>(i));
    squares += head[i] * head[i];
  }
  if (norm)
    for (size_t i = 0; i < head.size(); ++i)
      head[i] *= norm[i] / std::sqrt(squares / static_cast<double>(head_dim) + eps);
  const size_t half = head.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const double c = cos.at(position, static_cast<int64_t>(i)),
                 s = sin.at(position, static_cast<int64_t>(i));
    result[i] = head[i] * c - head[half + i] * s;
    result[half + i] = head[half + i] * c + head[i] * s;
  }
  return result;
}

TEST(Elementwise, RopeAndStoreWritesTheSlotsAndNothingElse) {
  const int64_t num_heads = 4, kv_heads = 2, tokens = 5;
  for (Isa isa : isas())
    for (DType dtype : kDTypes)
      for (int64_t head_dim : {8, 32, 80, 96, 128})
        for (const auto& [with_norm, e4m3] :
             {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
          SCOPED_TRACE(name(isa, dtype) + ", head_dim " + std::to_string(head_dim) +
                       (e4m3 ? ", e4m3" : ""));
          const int64_t width = (num_heads + 2 * kv_heads) * head_dim;
          Matrix qkv = random_matrix(dtype, tokens, width, 1);
          const Matrix before = random_matrix(dtype, tokens, width, 1);
          const Matrix q_norm = random_matrix(DType::kF32, 1, head_dim, 2);
          const Matrix k_norm = random_matrix(DType::kF32, 1, head_dim, 3);
          Matrix cos(DType::kF32, 40, head_dim / 2), sin(DType::kF32, 40, head_dim / 2);
          for (int64_t p = 0; p < 40; ++p)
            for (int64_t i = 0; i < head_dim / 2; ++i) {
              cos.set(p, i, std::cos(static_cast<float>(p) / static_cast<float>(i + 1)));
              sin.set(p, i, std::sin(static_cast<float>(p) / static_cast<float>(i + 1)));
            }
          std::vector<int32_t> positions = {0, 7, 39, 3, 1}, slots = {33, -1, 0, 16, 47};
          Cache cache({.dtype = e4m3 ? DType::kE4M3 : dtype,
                       .num_layers = 2,
                       .num_blocks = 3,
                       .block_size = 16,
                       .num_kv_heads = kv_heads,
                       .head_dim = head_dim});
          const Cache untouched(cache.kv);
          RopeStoreArgs args;
          args.qkv = qkv.tensor;
          args.cos = cos.tensor;
          args.sin = sin.tensor;
          args.num_heads = num_heads;
          args.eps = 1e-6f;
          args.layer = 1;
          if (with_norm) {
            args.q_norm = Tensor(q_norm.tensor.data, DType::kF32, head_dim);
            args.k_norm = Tensor(k_norm.tensor.data, DType::kF32, head_dim);
          }
          Step step;
          step.token_ids = positions;  // as many
          step.positions = ints(positions);
          step.slot_mapping = ints(slots);
          rope_and_store(args, cache.kv, step, isa);

          const auto weight = [&](const Matrix& norm) {
            return with_norm ? norm.tensor.as<float>() : nullptr;
          };
          for (int64_t t = 0; t < tokens; ++t) {
            const int64_t position = positions[static_cast<size_t>(t)];
            const int32_t slot = slots[static_cast<size_t>(t)];
            for (int64_t h = 0; h < num_heads; ++h) {
              const auto q = rotated(before, t, h * head_dim, head_dim, weight(q_norm), 1e-6f, cos,
                                     sin, position);
              for (int64_t i = 0; i < head_dim; ++i) {
                const double expected = q[static_cast<size_t>(i)];
                ASSERT_NEAR(qkv.at(t, h * head_dim + i), expected,
                            tolerance(dtype, expected) + 3e-6);
              }
            }
            for (int64_t h = 0; slot >= 0 && h < kv_heads; ++h) {
              const auto k = rotated(before, t, (num_heads + h) * head_dim, head_dim,
                                     weight(k_norm), 1e-6f, cos, sin, position);
              std::vector<float> v;
              for (int64_t i = 0; i < head_dim; ++i)
                v.push_back(before.at(t, (num_heads + kv_heads + h) * head_dim + i));
              const std::vector<double> quantized_v = quantized(v);
              const double largest =
                  std::abs(*std::ranges::max_element(k, {}, [](double x) { return std::abs(x); }));
              for (int64_t i = 0; i < head_dim; ++i) {
                const auto d = static_cast<size_t>(i);
                // Half a step of e4m3, which is an eighth of a power of two, but not below 2^-9.
                const double step = e4m3 ? std::max(std::abs(k[d]) / 16, largest / 448 / 1024) : 0;
                ASSERT_NEAR(cache.at(1, slot, 0, h, i), k[d],
                            1.01 * step + tolerance(dtype, k[d]) + 3e-6);
                ASSERT_EQ(cache.at(1, slot, 1, h, i),
                          e4m3 ? static_cast<float>(quantized_v[d]) : v[d]);
              }
            }
          }
          for (int32_t slot = 0; slot < 48; ++slot)
            for (int64_t layer : {0, 1})
              for (int64_t h = 0; h < kv_heads; ++h) {
                if (layer == 1 && std::find(slots.begin(), slots.end(), slot) != slots.end())
                  continue;
                ASSERT_EQ(cache.at(layer, slot, 0, h, 0), untouched.at(layer, slot, 0, h, 0));
                ASSERT_EQ(cache.at(layer, slot, 1, h, head_dim - 1),
                          untouched.at(layer, slot, 1, h, head_dim - 1));
              }
        }
}

TEST(Elementwise, Float32BitsOfARowDoNotDependOnItsBatch) {
  const Matrix weight = random_matrix(DType::kF32, 1, 500, 3);
  const Tensor w(weight.tensor.data, DType::kF32, 500);
  for (Isa isa : isas()) {
    Matrix residual = random_matrix(DType::kF32, 300, 500, 1), out(DType::kF32, 300, 500);
    rms_norm(out.tensor, residual.tensor, {w, 1e-6f}, isa);
    Matrix one(DType::kF32, 1, 500);
    for (int64_t r : {0, 131, 299}) {
      rms_norm(one.tensor, residual.tensor.rows(r, 1), {w, 1e-6f}, isa);
      EXPECT_EQ(std::memcmp(one.bytes.data(), out.tensor.rows(r, 1).data, one.bytes.size()), 0)
          << isa_name(isa);
    }
  }
}

TEST(Elementwise, QuantizedKeysOfZerosAndInfinitiesAndNaN) {
  for (Isa isa : isas())
    for (DType dtype : kDTypes)
      for (const float special : {0.0f, 1e-30f, std::numeric_limits<float>::infinity(),
                                  std::numeric_limits<float>::quiet_NaN()}) {
        SCOPED_TRACE(name(isa, dtype) + " " + std::to_string(special));
        Matrix x(dtype, 1, 24);
        for (int64_t i = 0; i < 24; ++i) x.set(0, i, i == 5 ? special : 0);
        uint8_t out[24];
        const float scale = kernels_for(isa, dtype).elementwise.quantize(out, x.bytes.data(), 24);
        EXPECT_NE(scale, 0);
        EXPECT_EQ(std::isfinite(scale), std::isfinite(special));
        EXPECT_EQ(std::isnan(scale), std::isnan(special));
        if (std::isfinite(special)) {
          EXPECT_NEAR(e4m3_to_f32(out[5]) * scale, special, 1e-18);
        }
      }
}

TEST(Elementwise, CopyBlocksCopiesAllLayersOfKeysAndValues) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3}) {
    Cache cache({.dtype = dtype,
                 .num_layers = 3,
                 .num_blocks = 5,
                 .block_size = 16,
                 .num_kv_heads = 2,
                 .head_dim = 8});
    const size_t pair = cache.kv.block_bytes() / 3;
    for (size_t i = 0; i < cache.bytes.size(); ++i) cache.bytes[i] = static_cast<char>(i / pair);
    const std::vector<char> before = cache.bytes;
    const BlockCopy copies[] = {{.from = 4, .to = 0}, {.from = 1, .to = 3}};
    copy_blocks(cache.kv, copies);
    for (size_t layer = 0; layer < 3; ++layer)
      for (size_t block = 0; block < 5; ++block) {
        const size_t source = block == 0 ? 4 : block == 3 ? 1 : block;
        EXPECT_EQ(std::memcmp(&cache.bytes[(layer * 5 + block) * pair],
                              &before[(layer * 5 + source) * pair], pair),
                  0)
            << "layer " << layer << ", block " << block;
      }
  }
}

}  // namespace
}  // namespace nanovllm::cpu
