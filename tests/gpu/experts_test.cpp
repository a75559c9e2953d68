#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "quantized_weights.h"
#include "two_backends.h"

namespace nanovllm {
namespace {

struct Shape {
  int64_t num_experts, top_k, hidden, n;
};

class GpuExperts : public TwoBackends {
 protected:
  /// A layer of experts on the GPU, the values of its weights, and its buffers.
  struct Layer {
    DType dtype = DType::kF32;
    Shape shape = {};
    WeightPtr router, gate_up, down;
    std::vector<float> router_values, gate_up_values, down_values;
    Twin norm, logits, shares, entries, chosen, scratch, act, rows;
  };

  WeightPtr pack(DType dtype, int64_t n, int64_t k, float scale, int64_t num_experts, bool in_pairs,
                 std::vector<float>& values) {
    Twin twin = make({nullptr, dtype, n, k}, scale / std::sqrt(static_cast<float>(k)));
    if (in_pairs)
      std::copy_n(twin.host.begin(), twin.host.size() / 2,
                  twin.host.begin() + static_cast<std::ptrdiff_t>(twin.host.size() / 2));
    for (int64_t i = 0; i < n * k; ++i) values.push_back(get(twin.host.data(), dtype, i));
    const WeightRows all = twin.on_cpu;
    return num_experts > 0 ? gpu->pack_experts({&all, 1}, num_experts, dtype)
                           : gpu->pack(all, dtype);
  }
  /// The matrices of all experts, quantized: `parts` of each expert, all [n, k].
  WeightPtr pack(const QuantizedKind& kind, DType dtype, int64_t n, int64_t k, int64_t parts,
                 int64_t num_experts, std::vector<float>& values) {
    std::vector<WeightRows> all;
    const float deviation = 1 / std::sqrt(static_cast<float>(k));
    for (int64_t i = 0; i < num_experts * parts; ++i) {
      all.push_back(random_quantized(kind, n, k, deviation, random));
      values.resize(values.size() + static_cast<size_t>(n * k));
      all.back().read(0, n, &*values.end() - n * k);
    }
    return gpu->pack_experts(all, num_experts, dtype);
  }
  /// `in_pairs`: the router's logits of experts i and num_experts / 2 + i are equal.
  Layer make_layer(DType dtype, const Shape& s, int64_t most_tokens, bool in_pairs = false,
                   const QuantizedKind* kind = nullptr) {
    const int64_t num_entries = most_tokens * s.top_k;
    Layer layer;
    layer.dtype = dtype;
    layer.shape = s;
    layer.router = pack(dtype, s.num_experts, s.hidden, 4, 0, in_pairs, layer.router_values);
    if (kind != nullptr) {
      layer.gate_up = pack(*kind, dtype, s.n, s.hidden, 2, s.num_experts, layer.gate_up_values);
      layer.down = pack(*kind, dtype, s.hidden, s.n, 1, s.num_experts, layer.down_values);
    } else {
      layer.gate_up = pack(dtype, s.num_experts * 2 * s.n, s.hidden, 1, s.num_experts, false,
                           layer.gate_up_values);
      layer.down =
          pack(dtype, s.num_experts * s.hidden, s.n, 1, s.num_experts, false, layer.down_values);
    }
    layer.norm = make({nullptr, DType::kF32, s.hidden});
    layer.logits = make({nullptr, DType::kF32, most_tokens, s.num_experts}, 0);
    layer.shares = make({nullptr, DType::kF32, most_tokens, s.top_k}, 0);
    layer.entries = make({nullptr, DType::kI32, most_tokens, s.top_k}, 0);
    layer.chosen = make({nullptr, DType::kI32, num_entries}, 0);
    layer.scratch =
        make(std::vector<int32_t>(static_cast<size_t>(num_entries + 4 * s.num_experts + 1)));
    layer.act = make({nullptr, dtype, num_entries, s.n}, 0);
    layer.rows = make({nullptr, dtype, num_entries, s.hidden}, 0);
    return layer;
  }
  /// What norm_experts() makes of the residual x [tokens, hidden].
  std::vector<float> run(const Layer& layer, const Twin& x, bool normalizes) {
    const int64_t tokens = x.on_gpu.shape[0], num_entries = tokens * layer.shape.top_k;
    const Twin hidden = make(x.on_gpu, 0);
    const Twin sum = make(x.on_gpu, 0);
    gpu->upload(sum.device.get(), x.host.data(), x.host.size());
    Residual residual(sum.on_gpu, hidden.on_gpu);
    gpu->norm_experts(residual, {layer.norm.on_gpu, 1e-6f},
                      {.router = *layer.router,
                       .gate_up = *layer.gate_up,
                       .down = *layer.down,
                       .normalize = normalizes,
                       .routing = {.logits = layer.logits.on_gpu.rows(0, tokens),
                                   .weights = layer.shares.on_gpu.rows(0, tokens),
                                   .entries = layer.entries.on_gpu.rows(0, tokens),
                                   .tokens = layer.chosen.on_gpu.rows(0, num_entries),
                                   .starts = {},
                                   .scratch = layer.scratch.on_gpu},
                       .wide = {},
                       .narrow = layer.act.on_gpu.rows(0, num_entries),
                       .out = layer.rows.on_gpu.rows(0, num_entries)});
    const std::vector<char> bytes = from_gpu(sum.on_gpu);
    std::vector<float> values;
    for (int64_t i = 0; i < x.on_gpu.size(); ++i)
      values.push_back(get(bytes.data(), layer.dtype, i));
    return values;
  }
  /// Compares what random tokens get with reference().
  void expect_double_precision(const Layer& layer, int64_t tokens, bool normalizes, bool in_pairs,
                               const std::string& what);
  /// The norm of token `t` of x, rounded as the GPU does.
  static std::vector<float> normed(const Layer& layer, const Twin& x, int64_t t) {
    const int64_t hidden = layer.shape.hidden;
    double squares = 0;
    for (int64_t h = 0; h < hidden; ++h)
      squares += std::pow(get(x.host.data(), layer.dtype, t * hidden + h), 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-6);
    std::vector<char> rounded(4);
    std::vector<float> values;
    for (int64_t h = 0; h < hidden; ++h) {
      const double y = get(x.host.data(), layer.dtype, t * hidden + h) * factor *
                       get(layer.norm.host.data(), DType::kF32, h);
      set(rounded.data(), layer.dtype, 0, static_cast<float>(y));
      values.push_back(get(rounded.data(), layer.dtype, 0));
    }
    return values;
  }
};

/// What one token's experts add to it, computed in double precision from the values that the GPU
/// has. `gap`: the difference of the last chosen expert's logit and the best other one's.
template <class Layer>
std::vector<double> reference(const std::vector<float>& x, const Layer& layer, bool normalizes,
                              double& gap) {
  const Shape& s = layer.shape;
  std::vector<double> logits(static_cast<size_t>(s.num_experts));
  const auto dot = [](const float* a, const auto* b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += double{a[i]} * double{b[i]};
    return sum;
  };
  for (int64_t e = 0; e < s.num_experts; ++e)
    logits[static_cast<size_t>(e)] =
        dot(&layer.router_values[static_cast<size_t>(e * s.hidden)], x.data(), s.hidden);
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto top_k = static_cast<size_t>(s.top_k);
  gap = top_k < order.size() ? logits[order[top_k - 1]] - logits[order[top_k]] : 1;
  double sum = 0;
  for (size_t i = 0; i < (normalizes ? top_k : order.size()); ++i)
    sum += std::exp(logits[order[i]] - logits[order[0]]);
  std::vector<double> out(static_cast<size_t>(s.hidden));
  std::vector<float> act(static_cast<size_t>(s.n));
  for (size_t i = 0; i < top_k; ++i) {
    const auto e = static_cast<int64_t>(order[i]);
    const float* const gates = &layer.gate_up_values[static_cast<size_t>(e * 2 * s.n * s.hidden)];
    for (int64_t j = 0; j < s.n; ++j) {
      const double gate = dot(gates + j * s.hidden, x.data(), s.hidden);
      const double up = dot(gates + (s.n + j) * s.hidden, x.data(), s.hidden);
      act[static_cast<size_t>(j)] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
    }
    const double share = std::exp(logits[order[i]] - logits[order[0]]) / sum;
    const float* const down = &layer.down_values[static_cast<size_t>(e * s.hidden * s.n)];
    for (int64_t h = 0; h < s.hidden; ++h)
      out[static_cast<size_t>(h)] += share * dot(down + h * s.n, act.data(), s.n);
  }
  return out;
}

void GpuExperts::expect_double_precision(const Layer& layer, int64_t tokens, bool normalizes,
                                         bool in_pairs, const std::string& what) {
  const DType dtype = layer.dtype;
  const int64_t hidden = layer.shape.hidden;
  const Twin x = make({nullptr, dtype, tokens, hidden});
  const std::vector<float> got = run(layer, x, normalizes);
  double difference = 0, size = 0;
  int64_t num_compared = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    double gap = 0;
    const std::vector<double> added = reference(normed(layer, x, t), layer, normalizes, gap);
    // Rounding decides between experts with different, but close logits.
    if (!(in_pairs && gap == 0) && gap < (dtype == DType::kF32 ? 1e-4 : 0.1)) continue;
    ++num_compared;
    for (int64_t h = 0; h < hidden; ++h) {
      const double before = get(x.host.data(), dtype, t * hidden + h);
      const double y = got[static_cast<size_t>(t * hidden + h)];
      difference += std::pow(y - before - added[static_cast<size_t>(h)], 2);
      size += std::pow(added[static_cast<size_t>(h)] + before, 2);
    }
  }
  EXPECT_GE(num_compared, tokens / 3) << what;
  if (num_compared == 0) return;
  EXPECT_LE(std::sqrt(difference / size), dtype == DType::kF32 ? 2e-5 : 1e-2) << what;
}

TEST_P(GpuExperts, AgreeWithDoublePrecision) {
  struct Case {
    Shape shape;
    std::vector<int64_t> token_counts;
  };
  // Up to 8 tokens have kernels of their own. In some of these shapes many tokens share experts; in
  // others a thread block has more than one tile, or a part of one, or of a chunk of 64.
  const Case cases[] = {{{8, 2, 96, 40}, {1, 7, 64, 1500}},
                        {{128, 8, 256, 96}, {1, 5, 60, 1100}},
                        {{5, 3, 72, 64}, {2, 16, 33, 300}},
                        {{200, 4, 90, 24}, {1, 9, 40, 200}},
                        {{16, 8, 136, 72}, {1, 2, 3, 4, 5, 6, 7, 8}},
                        {{40, 1, 2304, 24}, {1, 3, 8, 9}},
                        {{300, 5, 64, 8}, {1, 4, 8}},
                        {{24, 8, 264, 264}, {1, 4, 8}},
                        {{32, 32, 128, 56}, {1, 2, 3}}};
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16})
    for (const auto& [s, token_counts] : cases)
      for (const bool in_pairs : {false, true}) {
        if (in_pairs && (s.num_experts % 2 == 1 || token_counts.back() > 16)) continue;
        const Layer layer = make_layer(dtype, s, std::ranges::max(token_counts), in_pairs);
        for (const bool normalizes : {false, true})
          for (const int64_t tokens : token_counts) {
            const std::string what =
                fmt::format("{} {} of {} experts [{}, {}]{}, {} tokens", dtype_name(dtype), s.top_k,
                            s.num_experts, s.hidden, s.n, in_pairs ? " in pairs" : "", tokens);
            expect_double_precision(layer, tokens, normalizes, in_pairs, what);
          }
      }
}

TEST_P(GpuExperts, OfAllFormats) {
  constexpr QuantizedKind kKinds[] = {
      {QuantizedFormat::kE4M3, 128, 128},     {QuantizedFormat::kE4M3, 1, 0},
      {QuantizedFormat::kInt4, 1, 128, true}, {QuantizedFormat::kInt4, 1, 32},
      {QuantizedFormat::kInt4, 1, 0},         {QuantizedFormat::kInt8, 1, 128, true},
      {QuantizedFormat::kInt8, 1, 32},        {QuantizedFormat::kInt8, 1, 0}};
  // Chunks of 128 columns that are whole and that are not, and more and fewer of them than warps.
  const Shape shapes[] = {{16, 4, 256, 128}, {6, 3, 1040, 48}, {24, 8, 2048, 384}};
  for (const QuantizedKind& kind : kKinds)
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32})
      for (const Shape& s : shapes) {
        const Layer layer = make_layer(dtype, s, 40, false, &kind);
        for (const int64_t tokens : {1, 2, 5, 8, 9, 40}) {
          if (skips()) continue;
          expect_double_precision(
              layer, tokens, tokens % 2 == 0, false,
              fmt::format("{}, {} {} of {} experts [{}, {}], {} tokens", name_of(kind),
                          dtype_name(dtype), s.top_k, s.num_experts, s.hidden, s.n, tokens));
        }
      }
}

TEST_P(GpuExperts, FewTokensGetWhatManyGet) {
  // The last token is repeated until there are too many tokens for the kernels of few.
  constexpr int64_t kMany = 20;
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const Shape& s : {Shape{48, 8, 1024, 64}, Shape{24, 6, 512, 200}}) {
      const Layer layer = make_layer(dtype, s, kMany);
      for (int64_t tokens = 1; tokens <= 8; ++tokens) {
        const Twin x = make({nullptr, dtype, tokens, s.hidden});
        Twin more = make({nullptr, dtype, kMany, s.hidden}, 0);
        const size_t row_bytes = x.host.size() / static_cast<size_t>(tokens);
        for (size_t t = 0; t < kMany; ++t)
          std::copy_n(&x.host[std::min(t, static_cast<size_t>(tokens) - 1) * row_bytes], row_bytes,
                      &more.host[t * row_bytes]);
        const std::vector<float> few = run(layer, x, true), many = run(layer, more, true);
        double difference = 0, size = 0;
        for (int64_t i = 0; i < tokens * s.hidden; ++i) {
          const double a = few[static_cast<size_t>(i)], b = many[static_cast<size_t>(i)];
          difference += std::pow(a - b, 2);
          size += b * b;
        }
        EXPECT_LE(std::sqrt(difference / size), dtype == DType::kF16 ? 1e-3 : 5e-3)
            << fmt::format("{} experts, {}, {} tokens", s.num_experts, dtype_name(dtype), tokens);
      }
    }
}

NANOVLLM_BOTH_KERNELS(GpuExperts);

}  // namespace
}  // namespace nanovllm
