#include "nanovllm/ops/cpu/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nanovllm/ops/cpu/cpu_backend.h"
#include "tests/ops/matrix.h"

namespace nanovllm::cpu {
namespace {

using ::testing::ElementsAre;

/// The tensors of a Routing.
struct Route {
  Route(int64_t num_tokens, int64_t num_experts, int64_t top_k)
      : logits(DType::kF32, num_tokens, num_experts),
        weights(DType::kF32, num_tokens, top_k),
        entries(static_cast<size_t>(num_tokens * top_k)),
        tokens(entries.size()),
        starts(static_cast<size_t>(num_experts + 1)) {
    routing.logits = logits.tensor;
    routing.weights = weights.tensor;
    routing.entries = Tensor(entries.data(), DType::kI32, num_tokens, top_k);
    routing.tokens = Tensor(tokens.data(), DType::kI32, num_tokens * top_k);
    routing.starts = Tensor(starts.data(), DType::kI32, num_experts + 1);
  }
  void set(int64_t token, const std::vector<float>& row) {
    for (size_t e = 0; e < row.size(); ++e) logits.set(token, static_cast<int64_t>(e), row[e]);
  }
  int64_t expert_of(int32_t entry) const {
    return std::upper_bound(starts.begin(), starts.end(), entry) - starts.begin() - 1;
  }
  /// The experts of a token, the best one first.
  std::vector<int64_t> experts(int64_t token) const {
    std::vector<int64_t> all;
    const int64_t top_k = weights.tensor.shape[1];
    for (int64_t j = 0; j < top_k; ++j)
      all.push_back(expert_of(entries[static_cast<size_t>(token * top_k + j)]));
    return all;
  }

  Matrix logits, weights;
  std::vector<int32_t> entries, tokens, starts;
  Routing routing;
};

TEST(Experts, EntriesAreSortedByExpertAndThenByToken) {
  Route r(3, 4, 2);
  r.set(0, {1, 9, 2, 8});
  r.set(1, {5, 0, 7, 6});
  r.set(2, {0, 3, 0, 4});
  route(r.routing, true);
  EXPECT_THAT(r.experts(0), ElementsAre(1, 3));
  EXPECT_THAT(r.experts(1), ElementsAre(2, 3));
  EXPECT_THAT(r.experts(2), ElementsAre(3, 1));
  EXPECT_THAT(r.starts, ElementsAre(0, 0, 2, 3, 6));
  EXPECT_THAT(r.tokens, ElementsAre(0, 2, 1, 0, 1, 2));
  EXPECT_THAT(r.entries, ElementsAre(0, 3, 2, 4, 5, 1));
}

TEST(Experts, OfEqualLogitsTheLowerExpertIsChosen) {
  Route r(2, 6, 3);
  r.set(0, {1, 2, 2, 1, 2, 2});
  r.set(1, {0, 0, 0, 0, 0, 0});
  route(r.routing, false);
  EXPECT_THAT(r.experts(0), ElementsAre(1, 2, 4));
  EXPECT_THAT(r.experts(1), ElementsAre(0, 1, 2));
}

TEST(Experts, WeightsAreTheSoftmaxOfAllOrOfTheChosenLogits) {
  for (const bool normalize : {false, true}) {
    Route r(1, 5, 2);
    r.set(0, {200, 203, 90, 202, 201});
    route(r.routing, normalize);
    const double chosen = 1 + std::exp(-1.0), all = chosen + std::exp(-2.0) + std::exp(-3.0);
    EXPECT_NEAR(r.weights.at(0, 0), 1 / (normalize ? chosen : all), 1e-6);
    EXPECT_NEAR(r.weights.at(0, 1), std::exp(-1.0) / (normalize ? chosen : all), 1e-6);
  }
}

TEST(Experts, LogitsThatAreNotFiniteChooseDifferentExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Route r(4, 4, 3);
  r.set(0, {nan, nan, nan, nan});
  r.set(1, {nan, 1, nan, 2});
  r.set(2, {-inf, -inf, -inf, -inf});
  r.set(3, {1, inf, nan, inf});
  route(r.routing, true);
  EXPECT_THAT(r.experts(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(r.experts(1), ElementsAre(3, 1, 0));
  EXPECT_THAT(r.experts(2), ElementsAre(0, 1, 2));
  EXPECT_THAT(r.experts(3), ElementsAre(1, 3, 0));
}

/// The stage in double, with the rounded values as input.
class ExpertStage {
 public:
  ExpertStage(DType dtype, int64_t num_tokens, int64_t num_experts, int64_t top_k, int64_t hidden,
              int64_t n)
      : num_experts_(num_experts),
        hidden_(hidden),
        n_(n),
        x_(random_matrix(dtype, num_tokens, hidden, 1)),
        router_(random_matrix(dtype, num_experts, hidden, 2)),
        gate_up_(random_matrix(dtype, num_experts * 2 * n, hidden, 3)),
        down_(random_matrix(dtype, num_experts * hidden, n, 4)),
        norm_(DType::kF32, 1, hidden),
        route_(num_tokens, num_experts, top_k),
        wide_(dtype, num_tokens * top_k, 2 * n),
        narrow_(dtype, num_tokens * top_k, n),
        out_(dtype, num_tokens * top_k, hidden),
        sum_(dtype, num_tokens, hidden),
        scratch_(dtype, num_tokens, hidden) {
    for (int64_t i = 0; i < hidden; ++i) norm_.set(0, i, 1);
    scale(gate_up_, 1 / std::sqrt(static_cast<float>(hidden)));
    scale(down_, 1 / std::sqrt(static_cast<float>(n)));
  }

  void run(CpuBackend& backend, bool normalize) {
    const DType dtype = x_.tensor.dtype;
    sum_.bytes.assign(x_.bytes.begin(), x_.bytes.end());
    sum_.tensor.data = sum_.bytes.data();
    const WeightPtr router = backend.pack(router_.tensor, dtype);
    const auto experts = [&](const Matrix& matrix) {
      std::vector<WeightRows> parts;
      const int64_t rows = matrix.tensor.shape[0] / num_experts_;
      for (int64_t e = 0; e < num_experts_; ++e)
        parts.emplace_back(matrix.tensor.rows(e * rows, rows));
      return backend.pack_experts(parts, num_experts_, dtype);
    };
    const WeightPtr gate_up = experts(gate_up_), down = experts(down_);
    Residual residual(sum_.tensor, scratch_.tensor);
    backend.norm_experts(residual, {Tensor(norm_.tensor.data, DType::kF32, hidden_), 1e-6f},
                         {.router = *router,
                          .gate_up = *gate_up,
                          .down = *down,
                          .normalize = normalize,
                          .routing = route_.routing,
                          .wide = wide_.tensor,
                          .narrow = narrow_.tensor,
                          .out = out_.tensor});
  }

  void expect_right(bool normalize, double tolerance) {
    const int64_t num_tokens = x_.tensor.shape[0];
    for (int64_t t = 0; t < num_tokens; t += 1 + num_tokens / 20) {  // about 20 of them
      double squares = 0;
      for (int64_t i = 0; i < hidden_; ++i) squares += x(t, i) * x(t, i);
      const double rms = std::sqrt(squares / static_cast<double>(hidden_) + 1e-6);
      // The experts are those that the backend chose: equal logits but for rounding may differ.
      double all = 0, chosen = 0;
      const auto weight = [&](int64_t e) {
        double logit = 0;
        for (int64_t i = 0; i < hidden_; ++i) logit += x(t, i) / rms * router_.at(e, i);
        return std::exp(logit);
      };
      for (int64_t e = 0; e < num_experts_; ++e) all += weight(e);
      for (const int64_t e : route_.experts(t)) chosen += weight(e);
      const double total = normalize ? chosen : all;
      std::vector<double> expected(static_cast<size_t>(hidden_));
      for (const int64_t e : route_.experts(t)) {
        std::vector<double> act;
        for (int64_t c = 0; c < n_; ++c) {
          double gate = 0, up = 0;
          for (int64_t i = 0; i < hidden_; ++i) {
            gate += x(t, i) / rms * gate_up_.at(e * 2 * n_ + c, i);
            up += x(t, i) / rms * gate_up_.at((e * 2 + 1) * n_ + c, i);
          }
          act.push_back(gate / (1 + std::exp(-gate)) * up);
        }
        const double share = weight(e) / total;
        for (int64_t i = 0; i < hidden_; ++i)
          for (int64_t c = 0; c < n_; ++c)
            expected[static_cast<size_t>(i)] +=
                share * act[static_cast<size_t>(c)] * down_.at(e * hidden_ + i, c);
      }
      for (int64_t i = 0; i < hidden_; ++i)
        ASSERT_NEAR(sum_.at(t, i), x(t, i) + expected[static_cast<size_t>(i)], tolerance)
            << "token " << t << ", " << i;
    }
  }

 private:
  double x(int64_t t, int64_t i) const { return x_.at(t, i); }
  static void scale(Matrix& m, float factor) {
    for (int64_t r = 0; r < m.tensor.shape[0]; ++r)
      for (int64_t c = 0; c < m.tensor.shape[1]; ++c) m.set(r, c, m.at(r, c) * factor);
  }

  int64_t num_experts_, hidden_, n_;
  Matrix x_, router_, gate_up_, down_, norm_;
  Route route_;
  Matrix wide_, narrow_, out_, sum_, scratch_;
};

// Sizes that no panel divides, one token, more rows of an expert than a task has, and one expert.
TEST(Experts, StageEqualsTheFormulaForAllShapesAndDtypes) {
  struct Shape {
    int64_t num_tokens, num_experts, top_k, hidden, n;
  };
  for (const Isa isa : isas())
    for (const int threads : {1, 2})
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (const Shape s : {Shape{1, 8, 2, 40, 24},
                              {5, 3, 3, 33, 17},
                              {37, 16, 4, 64, 48},
                              {300, 2, 1, 24, 16},
                              {130, 1, 1, 24, 40}}) {
          SCOPED_TRACE(::testing::Message()
                       << isa_name(isa) << ", " << threads << " threads, " << dtype_name(dtype)
                       << ", " << s.num_tokens << " tokens, " << s.num_experts << " experts");
          CpuBackend backend(threads, isa);
          for (const bool normalize : {true, false}) {
            ExpertStage stage(dtype, s.num_tokens, s.num_experts, s.top_k, s.hidden, s.n);
            stage.run(backend, normalize);
            stage.expect_right(normalize, dtype == DType::kF32    ? 2e-5
                                          : dtype == DType::kBF16 ? 0.15
                                                                  : 0.02);
          }
        }
}

}  // namespace
}  // namespace nanovllm::cpu
