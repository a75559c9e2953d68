#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/text/constraint.h"

namespace nanovllm::grammar {

/// Holds to a form only what follows the thought of a reasoning model. The thought itself is free,
/// but the answer cannot end in it.
class AfterThought : public Constraint {
 public:
  enum class State : uint8_t {
    kMayThink,  ///< the answer begins, with a thought or with what has a form
    kThinking,
    kAnswering
  };

  /// `begin` and `end` are the tokens around a thought, `end_ids` those that end an answer.
  AfterThought(std::unique_ptr<Constraint> answer, int32_t begin, int32_t end,
               std::vector<int32_t> end_ids, State state)
      : answer_(std::move(answer)),
        begin_(begin),
        end_(end),
        end_ids_(std::move(end_ids)),
        state_(state) {}

  void accept(int32_t id) override {
    if (state_ == State::kMayThink) state_ = id == begin_ ? State::kThinking : State::kAnswering;
    else if (state_ == State::kThinking && id == end_) {
      state_ = State::kAnswering;
      return;
    }
    if (state_ == State::kAnswering) answer_->accept(id);
  }
  void fill(std::span<int32_t> bits) const override {
    if (state_ == State::kThinking) {
      std::ranges::fill(bits, -1);
      for (const int32_t id : end_ids_)
        bits[static_cast<uint32_t>(id) / 32] &= ~static_cast<int32_t>(1U << (id % 32));
      return;
    }
    answer_->fill(bits);
    if (state_ == State::kMayThink)
      bits[static_cast<uint32_t>(begin_) / 32] |= static_cast<int32_t>(1U << (begin_ % 32));
  }
  bool is_done() const override { return state_ == State::kAnswering && answer_->is_done(); }

 private:
  std::unique_ptr<Constraint> answer_;
  int32_t begin_, end_;
  std::vector<int32_t> end_ids_;
  State state_;
};

}  // namespace nanovllm::grammar
