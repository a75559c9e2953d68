#include <fmt/format.h>

#include <array>
#include <numeric>

#include "two_backends.h"

namespace nanovllm {
namespace {

using GpuExperts = TwoBackends;

struct Shape {
  int64_t num_experts, top_k, hidden, n;
  std::array<int64_t, 4> token_counts;
};

/// What one token's experts add to it, computed in double precision from the values that the GPU
/// has. `gap`: the difference of the last chosen expert's logit and the best other one's.
std::vector<double> reference(const std::vector<float>& x, const std::vector<float>& router,
                              const std::vector<float>& gate_up, const std::vector<float>& down,
                              const Shape& s, bool normalizes, double& gap) {
  std::vector<double> logits(static_cast<size_t>(s.num_experts));
  const auto dot = [](const float* a, const auto* b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += double{a[i]} * double{b[i]};
    return sum;
  };
  for (int64_t e = 0; e < s.num_experts; ++e)
    logits[static_cast<size_t>(e)] =
        dot(&router[static_cast<size_t>(e * s.hidden)], x.data(), s.hidden);
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
    const float* const gates = &gate_up[static_cast<size_t>(e * 2 * s.n * s.hidden)];
    for (int64_t j = 0; j < s.n; ++j) {
      const double gate = dot(gates + j * s.hidden, x.data(), s.hidden);
      const double up = dot(gates + (s.n + j) * s.hidden, x.data(), s.hidden);
      act[static_cast<size_t>(j)] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
    }
    const double share = std::exp(logits[order[i]] - logits[order[0]]) / sum;
    for (int64_t h = 0; h < s.hidden; ++h)
      out[static_cast<size_t>(h)] +=
          share * dot(&down[static_cast<size_t>((e * s.hidden + h) * s.n)], act.data(), s.n);
  }
  return out;
}

TEST_P(GpuExperts, AgreeWithDoublePrecision) {
  constexpr Shape kShapes[] = {{8, 2, 96, 40, {1, 7, 64, 1500}},
                               {128, 8, 256, 96, {1, 5, 60, 1100}},
                               {5, 3, 72, 64, {2, 16, 33, 300}},
                               {200, 4, 90, 24, {1, 9, 40, 200}}};
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16})
    for (const Shape& s : kShapes) {
      const auto weights = [&](int64_t n, int64_t k, float scale, int64_t num_experts) {
        Twin twin = make({nullptr, dtype, n, k}, scale / std::sqrt(static_cast<float>(k)));
        std::vector<float> values(static_cast<size_t>(n * k));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = get(twin.host.data(), dtype, static_cast<int64_t>(i));
        const WeightRows all = twin.on_cpu;
        return std::pair(num_experts > 0 ? gpu->pack_experts({&all, 1}, num_experts, dtype)
                                         : gpu->pack(all, dtype),
                         std::move(values));
      };
      const auto [router, router_values] = weights(s.num_experts, s.hidden, 4, 0);
      const auto [gate_up, gate_up_values] =
          weights(s.num_experts * 2 * s.n, s.hidden, 1, s.num_experts);
      const auto [down, down_values] = weights(s.num_experts * s.hidden, s.n, 1, s.num_experts);
      const Twin norm = make({nullptr, DType::kF32, s.hidden});
      for (const bool normalizes : {false, true}) {
        const int64_t most = s.token_counts.back();
        const Twin logits = make({nullptr, DType::kF32, most, s.num_experts}, 0);
        const Twin shares = make({nullptr, DType::kF32, most, s.top_k}, 0);
        const Twin entries = make({nullptr, DType::kI32, most, s.top_k}, 0);
        const Twin chosen = make({nullptr, DType::kI32, most * s.top_k}, 0);
        const Buffer scratch =
            gpu->allocate(static_cast<size_t>(most * s.top_k + 4 * s.num_experts + 1) * 4);
        const Twin act = make({nullptr, dtype, most * s.top_k, s.n}, 0);
        const Twin rows = make({nullptr, dtype, most * s.top_k, s.hidden}, 0);
        for (const int64_t tokens : s.token_counts) {
          const std::string what =
              fmt::format("{} {} of {} experts [{}, {}], {} tokens", dtype_name(dtype), s.top_k,
                          s.num_experts, s.hidden, s.n, tokens);
          Twin x = make({nullptr, dtype, tokens, s.hidden});
          const Twin hidden = make({nullptr, dtype, tokens, s.hidden}, 0);
          Residual residual(x.on_gpu, hidden.on_gpu);
          const int64_t num_entries = tokens * s.top_k;
          gpu->norm_experts(residual, {norm.on_gpu, 1e-6f},
                            {.router = *router,
                             .gate_up = *gate_up,
                             .down = *down,
                             .normalize = normalizes,
                             .routing = {.logits = logits.on_gpu.rows(0, tokens),
                                         .weights = shares.on_gpu.rows(0, tokens),
                                         .entries = entries.on_gpu.rows(0, tokens),
                                         .tokens = chosen.on_gpu.rows(0, num_entries),
                                         .starts = {},
                                         .scratch = {scratch.get(), DType::kI32,
                                                     most * s.top_k + 4 * s.num_experts + 1}},
                             .wide = {},
                             .narrow = act.on_gpu.rows(0, num_entries),
                             .out = rows.on_gpu.rows(0, num_entries)});
          const std::vector<char> got = from_gpu(x.on_gpu);
          double difference = 0, size = 0;
          int64_t num_compared = 0;
          for (int64_t t = 0; t < tokens; ++t) {
            double squares = 0;
            for (int64_t h = 0; h < s.hidden; ++h)
              squares += std::pow(get(x.host.data(), dtype, t * s.hidden + h), 2);
            const double factor = 1 / std::sqrt(squares / static_cast<double>(s.hidden) + 1e-6);
            std::vector<char> rounded(4);
            std::vector<float> normed;
            for (int64_t h = 0; h < s.hidden; ++h) {
              const double y = get(x.host.data(), dtype, t * s.hidden + h) * factor *
                               get(norm.host.data(), DType::kF32, h);
              set(rounded.data(), dtype, 0, static_cast<float>(y));
              normed.push_back(get(rounded.data(), dtype, 0));
            }
            double gap = 0;
            const std::vector<double> added =
                reference(normed, router_values, gate_up_values, down_values, s, normalizes, gap);
            if (gap < (dtype == DType::kF32 ? 1e-4 : 0.1)) continue;  // rounding decides
            ++num_compared;
            for (int64_t h = 0; h < s.hidden; ++h) {
              const double before = get(x.host.data(), dtype, t * s.hidden + h);
              const double y = get(got.data(), dtype, t * s.hidden + h);
              difference += std::pow(y - before - added[static_cast<size_t>(h)], 2);
              size += std::pow(added[static_cast<size_t>(h)] + before, 2);
            }
          }
          EXPECT_GE(num_compared, tokens / 2) << what;
          if (num_compared == 0) continue;
          EXPECT_LE(std::sqrt(difference / size), dtype == DType::kF32 ? 2e-5 : 1e-2) << what;
        }
      }
    }
}

NANOVLLM_BOTH_KERNELS(GpuExperts);

}  // namespace
}  // namespace nanovllm
