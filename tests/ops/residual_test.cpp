#include "nanovllm/ops/residual.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <vector>

#include "nanovllm/ops/backend.h"

namespace nanovllm {
namespace {

static_assert(!std::is_convertible_v<Residual, Tensor>, "no operation on tensors takes a residual");
static_assert(!std::is_copy_constructible_v<Residual>, "a copy would not know what was finished");

constexpr int64_t kTokens = 3, kHidden = 32, kWide = 48;
constexpr float kEps = 1e-6f;

class BlockOrders : public ::testing::Test {
 protected:
  Tensor tensor(int64_t n, int64_t k) {
    buffers_.emplace_back(static_cast<size_t>(n * k));
    return {buffers_.back().data(), DType::kF32, n, k};
  }
  Tensor random(int64_t n, int64_t k, float scale = 1) {
    const Tensor t = tensor(n, k);
    std::normal_distribution<float> normal(0, scale);
    for (int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] = normal(random_);
    return t;
  }
  Norm norm() {
    const Tensor weight = random(1, kHidden);
    return {Tensor(weight.data, DType::kF32, kHidden), kEps};
  }
  static std::vector<double> values(const Tensor& t) {
    return {t.as<float>(), t.as<float>() + t.size()};
  }

  // The reference, in double and without a backend.
  static std::vector<double> normed(const std::vector<double>& x, const Norm& norm) {
    std::vector<double> y(x.size());
    for (size_t row = 0; row < x.size(); row += kHidden) {
      double squares = 0;
      for (size_t i = 0; i < kHidden; ++i) squares += x[row + i] * x[row + i];
      for (size_t i = 0; i < kHidden; ++i)
        y[row + i] = x[row + i] / std::sqrt(squares / kHidden + kEps) *
                     static_cast<double>(norm.weight.as<float>()[i]);
    }
    return y;
  }
  static std::vector<double> product(const std::vector<double>& x, const Tensor& w) {
    const auto n = static_cast<size_t>(w.shape[0]), k = static_cast<size_t>(w.shape[1]);
    std::vector<double> y(x.size() / k * n);
    for (size_t row = 0; row < x.size() / k; ++row)
      for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < k; ++j)
          y[row * n + i] += x[row * k + j] * static_cast<double>(w.as<float>()[i * k + j]);
    return y;
  }
  std::vector<double> mlp(const std::vector<double>& x) const {
    const std::vector<double> gate_up = product(x, gate_up_);
    std::vector<double> act;
    for (size_t row = 0; row < gate_up.size(); row += 2 * kWide)
      for (size_t i = 0; i < kWide; ++i)
        act.push_back(gate_up[row + i] / (1 + std::exp(-gate_up[row + i])) *
                      gate_up[row + kWide + i]);
    return product(act, down_);
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  std::mt19937 random_{7};
  std::vector<std::vector<float>> buffers_;
  Tensor gate_up_ = random(2 * kWide, kHidden, 0.3f), down_ = random(kHidden, kWide, 0.3f);
  WeightPtr gate_up_weight_ = backend_->pack(gate_up_, DType::kF32);
  WeightPtr down_weight_ = backend_->pack(down_, DType::kF32);
};

/// Blocks with the norm before, after, or before and after can all be written with Backend's
/// operations.
TEST_F(BlockOrders, NormsBeforeAndAfterABlock) {
  for (const bool before : {false, true})
    for (const bool after : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "norm before " << before << ", after " << after);
      const Norm input_norm = norm(), output_norm = norm();
      Residual residual(random(kTokens, kHidden), tensor(kTokens, kHidden));
      const std::vector<double> old = values(residual.whole());
      const Tensor wide = tensor(kTokens, 2 * kWide), act = tensor(kTokens, kWide),
                   out = tensor(kTokens, kHidden);

      if (before) {
        backend_->norm_swiglu(act, residual, input_norm, *gate_up_weight_, wide);
      } else {
        backend_->matmul(wide, backend_->finish(residual), *gate_up_weight_);
        backend_->silu_mul(act, wide);
      }
      if (after) {
        backend_->matmul(out, act, *down_weight_);
        backend_->all_reduce(out);
        const Tensor normed_out = tensor(kTokens, kHidden);
        backend_->rms_norm(normed_out, out, output_norm);
        backend_->add(residual, normed_out);
      } else {
        backend_->add_matmul(residual, act, *down_weight_);
      }

      std::vector<double> added = mlp(before ? normed(old, input_norm) : old);
      if (after) added = normed(added, output_norm);
      const std::vector<double> now = values(backend_->finish(residual));
      for (size_t i = 0; i < now.size(); ++i) ASSERT_NEAR(now[i], old[i] + added[i], 1e-4) << i;
    }
}

TEST_F(BlockOrders, RowsOfAResidual) {
  Residual residual(random(kTokens, kHidden), tensor(kTokens, kHidden));
  const std::vector<double> all = values(residual.whole());
  const Residual last = residual.rows(kTokens - 1, 1);
  EXPECT_EQ(last.num_tokens(), 1);
  EXPECT_EQ(values(last.whole()), std::vector<double>(all.end() - kHidden, all.end()));

  std::vector<int32_t> rows = {2, 0, 2};
  Residual some(tensor(3, kHidden), tensor(3, kHidden));
  backend_->gather_rows(some, residual, {rows.data(), DType::kI32, 3});
  const std::vector<double> gathered = values(some.whole());
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t i = 0; i < kHidden; ++i)
      EXPECT_EQ(gathered[r * kHidden + i], all[static_cast<size_t>(rows[r]) * kHidden + i]);
}

/// An unfinished residual cannot be read by mistake (order.residual).
TEST_F(BlockOrders, AnUnfinishedResidualIsNotRead) {
  Residual residual(random(kTokens, kHidden), tensor(kTokens, kHidden));
  using State = Residual::State;
  for (const State state : {State::kPartial, State::kUnadded, State::kOwnRows}) {
    residual.state = state;
    EXPECT_THROW(std::ignore = residual.whole(), std::logic_error);
    EXPECT_THROW(std::ignore = residual.rows(0, 1), std::logic_error);
  }
}

}  // namespace
}  // namespace nanovllm
