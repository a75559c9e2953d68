#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/base/structured_outputs.h"
#include "nanovllm/text/constraint.h"
#include "nanovllm/text/grammar/token_masks.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm::grammar {

/// The forms to which the answers of an engine are held. Those that were asked for last stay
/// compiled, with their states and masks. Thread-safe; different forms are compiled at once.
class Forms {
 public:
  /// `tokenizer` may be null: then no answer can have a form.
  /// `vocab_size` is the model's.
  Forms(std::shared_ptr<const Tokenizer> tokenizer, std::span<const int32_t> end_ids,
        int64_t vocab_size)
      : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size) {
    for (const int32_t id : end_ids)
      if (id >= 0 && id < vocab_size) end_ids_.push_back(id);
  }

  /// Throws UserError that begins with `where`: see compile().
  std::shared_ptr<Grammar> get(const StructuredOutputs& form, const std::string& where) const;

  /// The time that get() has spent with forms that it did not know, in all threads.
  double compile_seconds() const {
    const std::lock_guard lock(mutex_);
    return compile_seconds_;
  }

  /// Holds one answer to the prompt to a grammar, from after its thought on: one that the prompt
  /// has begun, or, if the model `may_think`, one that the answer begins.
  std::unique_ptr<Constraint> constraint(std::shared_ptr<Grammar> grammar,
                                         std::span<const int32_t> prompt, bool may_think) const;

 private:
  static constexpr size_t kMaxGrammars = 64;
  struct Entry {
    StructuredOutputs form;
    std::shared_ptr<Grammar> grammar;
  };

  std::shared_ptr<const Tokenizer> tokenizer_;
  int64_t vocab_size_;
  std::vector<int32_t> end_ids_;
  mutable std::once_flag has_trie_;
  mutable std::shared_ptr<const TokenTrie> trie_;  // made for the first form
  mutable std::mutex mutex_;
  mutable std::list<Entry> entries_;  // the last used first
  mutable double compile_seconds_ = 0;
};

}  // namespace nanovllm::grammar
