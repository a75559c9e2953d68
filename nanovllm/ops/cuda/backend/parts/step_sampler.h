#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/backend/parts/device.h"
#include "nanovllm/ops/cuda/sampling/sampler.h"

namespace nanovllm::cuda {

/// Two steps may be running, and the host writes the input of a third one.
inline constexpr size_t kNumSteps = 3;

/// Draws the tokens of a step, and brings them to the host.
class StepSampler {
 public:
  explicit StepSampler(Device& device);
  ~StepSampler();

  /// Divides the drawn rows of a step into plain ones, special ones and those that want
  /// log-probabilities, and sends the lists of special rows to the device.
  void plan(const Step& step);
  /// The arrays of the step's input that plan() has made.
  struct Arrays {
    std::span<const RowParams> rows;       // [R]
    std::span<const int32_t> special;      // rows that are not plain
    std::span<const LogprobRow> wanted;    // of the rows that want log-probabilities
    std::span<const int32_t> wanted_rows;  // their numbers
  };
  Arrays arrays() const { return {row_params_, special_, wanted_, wanted_rows_}; }
  /// Where these arrays are on the device.
  void set_arrays(const Arrays& on_device) { on_device_ = on_device; }
  /// Where the step's tokens are written, in host memory; and where the kernels find this address.
  DrawnRow* drawn() const { return results_[num_finished_ % kNumSteps].drawn.as<DrawnRow>(); }
  DrawnRow** drawn_at() const { return drawn_at_.as<DrawnRow*>(); }

  /// Whether the GEMM of the logits may draw the tokens too (sample_gemm()).
  bool draws_in_gemm() const { return draws_in_gemm_; }
  /// Draws the plain rows.
  void sample(const Tensor& logits, const Step& step);
  /// The logits are args.x w^T; they are drawn without being stored.
  void sample_gemm(const GemmArgs& args, const Tensor& logits, const Step& step);
  /// Draws the other rows, and computes log-probabilities.
  void finish(const Tensor& logits, const Step& step);
  void fetch(std::span<int32_t> token_ids, std::span<RowStatus> status,
             std::vector<Logprob>& logprobs);
  /// Does what Backend::token_logprobs() says.
  void token_logprobs(const Tensor& logits, const Step& step, std::span<const int32_t> targets,
                      int64_t k, std::vector<Logprob>& entries);
  /// Called with several ranks, of which this one has the columns `own` of logits of `vocab_size`.
  void connect(int64_t vocab_size, Range own) { vocab_size_ = vocab_size, own_ = own; }

 private:
  RowParams row_params(const SampleRow& row, int32_t slot);
  /// Sends words_ and the late masks to the device on a stream of its own, so that this does not
  /// delay the step.
  void send_words(const Step& step);
  SampleParams params(const Tensor& logits, const Step& step) const;
  /// Called after the kernel that draws the plain rows. With several ranks that kernel has only
  /// written the best token of this rank's columns to `found`; this compares the ranks' tokens and
  /// draws.
  void draw_from_ranks(const SampleParams& params);
  /// Rows of logits with the whole vocabulary, gathered from all ranks: the rows that `rows`
  /// [count] (device memory) names, or the first `count` if it is null.
  const float* whole_logits(const Tensor& logits, const int32_t* rows, int64_t count);
  /// Calls body(params, first, count) for `num_rows` rows of logits, whose indices are `rows` in
  /// device memory (null: the first ones). It does so for a few rows at a time if they are gathered
  /// from all ranks, or if each needs a row of special_scratch_.
  template <class Body>
  void for_rows(const Tensor& logits, const Step& step, const int32_t* rows, int num_rows,
                bool needs_scratch, Body body);

  Device& device_;
  int64_t vocab_size_ = 0;  // of the whole model; only with several ranks
  Range own_;               // this rank's part of it

  // The rows of the step that plan() has planned.
  std::vector<RowParams> row_params_;
  std::vector<int32_t> special_, words_, wanted_rows_;
  std::vector<LogprobRow> wanted_;
  Arrays on_device_;
  bool draws_in_gemm_ = false;
  size_t num_late_words_ = 0;  // that the late masks take between words_ on the device

  /// What the sampler's kernels write directly to host memory, and the event after which it is
  /// complete.
  struct Results {
    Growing drawn{.pinned = true}, logprobs{.pinned = true};
    std::vector<LogprobRow> wanted;  ///< whose entries are in logprobs
    Event there;
  };
  std::array<Results, kNumSteps> results_;
  uint64_t num_finished_ = 0, num_fetched_ = 0;
  /// The lists of the rows of a step that has any.
  struct Words {
    Growing host{.pinned = true}, device;
    Event there, used;
  };
  std::array<Words, kNumSteps> words_sent_;
  const Words& last_words() const { return words_sent_[(num_words_ + kNumSteps - 1) % kNumSteps]; }
  cudaStream_t words_stream_ = nullptr;
  uint64_t num_words_ = 0;

  Growing drawn_at_{.in_graphs = true}, progress_{.in_graphs = true}, found_{.in_graphs = true},
      special_scratch_, prompt_wanted_, prompt_logprobs_{.pinned = true}, whole_logits_,
      gather_scratch_;
};

}  // namespace nanovllm::cuda
