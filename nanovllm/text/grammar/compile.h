#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "nanovllm/base/structured_outputs.h"
#include "nanovllm/text/grammar/token_masks.h"

namespace nanovllm::grammar {

/// The grammar of a form. Throws UserError that begins with `where` for a form that is wrong, not
/// supported, too large (1 MiB), or allows no text.
std::shared_ptr<Grammar> compile(const StructuredOutputs& form,
                                 std::shared_ptr<const TokenTrie> trie, const std::string& where);

/// The grammars of the forms that were asked for last, so that their states and masks are there
/// when one is asked for again. Thread-safe; different forms are compiled at once.
class Cache {
 public:
  explicit Cache(std::shared_ptr<const TokenTrie> trie) : trie_(std::move(trie)) {}

  std::shared_ptr<Grammar> get(const StructuredOutputs& form, const std::string& where);

 private:
  static constexpr size_t kMaxGrammars = 64;
  struct Entry {
    StructuredOutputs form;
    std::shared_ptr<Grammar> grammar;
  };

  std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace nanovllm::grammar
