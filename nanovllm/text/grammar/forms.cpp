#include "nanovllm/text/grammar/forms.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/text/grammar/after_thought.h"
#include "nanovllm/text/grammar/compile.h"

namespace nanovllm::grammar {

std::shared_ptr<Grammar> Forms::get(const StructuredOutputs& form, const std::string& where) const {
  require(tokenizer_ != nullptr, "{} needs a tokenizer; the model has no tokenizer.json", where);
  std::call_once(has_trie_,
                 [this] { trie_ = make_trie(tokenizer_->token_texts(), end_ids_, vocab_size_); });
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = std::ranges::find(entries_, form, &Entry::form);
        known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
      return known->grammar;
    }
  }
  const double begin = steady_seconds();
  auto grammar = compile(form, trie_, where);
  const std::lock_guard lock(mutex_);
  compile_seconds_ += steady_seconds() - begin;
  entries_.push_front({form, grammar});
  if (entries_.size() > kMaxGrammars) entries_.pop_back();
  return grammar;
}

std::unique_ptr<Constraint> Forms::constraint(std::shared_ptr<Grammar> grammar,
                                              std::span<const int32_t> prompt,
                                              bool may_think) const {
  using State = AfterThought::State;
  auto answer = std::make_unique<Matcher>(std::move(grammar));
  const auto begin = tokenizer_->token_to_id("<think>"), end = tokenizer_->token_to_id("</think>");
  if (!begin || !end || std::max(*begin, *end) >= vocab_size_) return answer;
  // The prompt's last tag tells whether a thought is open. One that was closed where the prompt
  // ends is that of this answer, which then has no other.
  const auto is_tag = [&](int32_t id) { return id == *begin || id == *end; };
  const auto is_space = [&](int32_t id) {
    const TokenTexts& texts = tokenizer_->token_texts();
    return texts.contains(id) && texts.text(id).find_first_not_of(" \n") == std::string_view::npos;
  };
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(), is_tag);
  State state = may_think ? State::kMayThink : State::kAnswering;
  if (last != prompt.rend()) {
    if (*last == *begin) state = State::kThinking;
    else if (std::all_of(prompt.rbegin(), last, is_space)) state = State::kAnswering;
  }
  if (state == State::kAnswering) return answer;
  return std::make_unique<AfterThought>(std::move(answer), *begin, *end, end_ids_, state);
}

}  // namespace nanovllm::grammar
