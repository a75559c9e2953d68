#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/ops/step.h"

namespace nanovllm {

/// What an output is: a token that is drawn from the logits of its place, the log-probabilities of
/// a known token under them, or the hidden state there (which no model gives yet).
enum class OutputKind : int32_t { kToken, kLogprobs, kPooled };

/// What a sequence gets from a step, at one of its tokens: token `offset` of rows[row]. The choices
/// of one prompt share a row, and a row may have no output.
struct OutputInput {
  uint64_t sequence = 0;  ///< names the output
  int32_t slot = 0;
  int32_t row = 0;
  int32_t offset = 0;
  OutputKind kind = OutputKind::kToken;
  int32_t target = kNoToken;  ///< of kLogprobs: the token that follows in the sequence
  /// If the step's late part says which tokens may be drawn: the words of its mask; else 0.
  int32_t num_late_words = 0;
};

/// The parameters of a sequence, sent when it gets its slot. Its lists are the next entries of
/// StepInput::setup_ids, in the order of their counts here, and of StepInput::biases. Choices and
/// prompts of a request share the lists of its parameters: they are sent and stored once.
struct SlotSetup : SamplingScalars {  // `position` is not used here; each row has its own
  int32_t slot = 0;
  int32_t same_lists = -1;    ///< the slot that has the lists of parameters; -1: they follow
  int32_t num_logprobs = -1;  ///< best alternatives for each drawn token; -1: none are wanted
  int32_t num_prompt_logprobs = -1;  ///< the same for prompt tokens
  int32_t masked_before = 0;         ///< masked ids cannot be drawn for an index below this
  int32_t num_masked_ids = 0;
  int32_t num_allowed_ids = 0;    ///< if there are any, only these tokens may be drawn
  int32_t num_allowed_words = 0;  ///< of SampleRow::allowed_mask, a shorter form of many ids
  int32_t num_bad_word_ids = 0;   ///< each word is the number of its tokens and their ids
  int32_t num_tokens = 0;  ///< of the sequence, if penalties or bad words need them; otherwise 0
  int32_t num_prompt_tokens = 0;  ///< how many of these are the prompt's
  int32_t num_biases = 0;

  bool has_lists() const {
    return (num_masked_ids | num_allowed_ids | num_allowed_words | num_bad_word_ids | num_biases) !=
           0;
  }
};

/// A copy of recurrent states, in all layers: before the rows of the step from a snapshot to a slot
/// (kRestore), after them from a slot to a snapshot (kSave) or slot (kFork). The state of a
/// sequence that gets its slot is empty before.
struct StateCopy {
  enum class Kind : int32_t { kRestore, kSave, kFork } kind = Kind::kRestore;
  int32_t from = 0, to = 0;
};

/// The arrays of a step, in the order of its buffer: from the largest alignment to the smallest, so
/// that none needs padding. The ranks keep block tables, sampling parameters and last tokens; the
/// arrays contain only changes. `List` is a vector while the step is built, and then a view of the
/// buffer.
template <template <class...> class List>
struct StepLists {
  List<OutputInput> outputs;  // those of kToken first
  List<SlotSetup> setups;
  List<StepRow> rows;
  List<BlockUpdate> block_updates;
  List<BlockCopy> copies;  // executed after the step's forward pass
  List<StateCopy> state_copies;
  List<int32_t> token_ids, setup_ids;
  List<TokenBias> biases;
  /// The late part of a step has only these two: which tokens may be drawn for the outputs with
  /// these indices. Each has a mask as SampleRow::allowed_mask, which also contains what its
  /// parameters allow: the next OutputInput::num_late_words of `mask_words`. A late output that is
  /// not named may draw any token.
  List<int32_t> late_outputs, mask_words;

  static constexpr size_t kCount = 11;
  static void for_each(auto& self, auto visit) {
    std::apply([&](auto&... lists) { (visit(lists), ...); },
               std::tie(self.outputs, self.setups, self.rows, self.block_updates, self.copies,
                        self.state_copies, self.token_ids, self.setup_ids, self.biases,
                        self.late_outputs, self.mask_words));
  }
};
template <class T>
using StepView = std::span<const T>;

/// The input of a step, or its late part: what depends on tokens that the host reads only after it
/// has sent the step. It is one flat buffer without pointers: a header, then the arrays.
class StepInput : public StepLists<StepView> {
 public:
  struct Header {
    uint64_t bytes = 0;
    uint64_t step = 0;
    std::array<uint32_t, kCount> counts = {};  ///< entries of each array
  };

  /// A view of `buffer`, which must outlive it. Throws std::logic_error if the sizes disagree.
  explicit StepInput(std::span<const std::byte> buffer);

  const Header& header() const { return *reinterpret_cast<const Header*>(buffer_.data()); }
  std::span<const std::byte> bytes() const { return buffer_; }
  /// Whether a late part follows the step.
  bool has_late() const;

 private:
  std::span<const std::byte> buffer_;
};

/// Empties an array whose memory is reused for the next step, unless a rare step has made it large.
template <class T>
void clear_for_reuse(std::vector<T>& array) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  if (array.capacity() * sizeof(T) > kMostBytes) array = {};
  else array.clear();
}

/// The arrays of a step while it is built.
struct StepArrays : StepLists<std::vector> {
  void clear() {
    for_each(*this, [](auto& array) { clear_for_reuse(array); });
  }
  /// Writes header and arrays into `buffer`, which grows if it is too small, and returns the view
  /// of it. Its mask_words are `num_mask_words` that the caller writes afterwards.
  StepInput write(uint64_t step, std::vector<std::byte>& buffer, size_t num_mask_words = 0) const;
};

/// The value of an OutputInput.
struct OutputValue {
  uint64_t sequence = 0;
  OutputKind kind = OutputKind::kToken;
  int32_t position = 0;  ///< index in the sequence of the token that is drawn, or of the target
  int32_t token_id = 0;  ///< the drawn one
  RowStatus status = RowStatus::kOk;  ///< otherwise, no token was drawn
  int32_t num_logprobs = 0;           ///< the next entries of StepOutput::logprobs
};

/// What a step returns: a value for each OutputInput, in their order.
struct StepOutput {
  std::vector<OutputValue> values;
  std::vector<Logprob> logprobs;  ///< of all values, in their order
  /// When rank 0 got the step, and when its output was there for the host; seconds on the steady
  /// clock. A device with a queue of steps may begin later, when it has finished the step before.
  double submit_time = 0, done_time = 0;

  void clear() {
    values.clear();
    logprobs.clear();
  }
};

}  // namespace nanovllm
