#include "nanovllm/engine/request.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

/// Whether the request's own restrictions leave no token to draw next.
static bool allows_no_token(const Sequence& seq, int64_t vocab_size) {
  const RequestParams& params = *seq.params;
  const std::span answer = std::span(seq.token_ids).subspan(to_size(seq.num_prompt_tokens));
  std::vector<int32_t> forbidden;
  if (std::ssize(answer) < params.given.min_tokens) forbidden = params.stop_ids;
  const std::span words(params.bad_words);
  for (size_t i = 0; i < words.size(); i += to_size(words[i]) + 1) {
    const std::span word = words.subspan(i + 1, to_size(words[i]));
    const std::span before = word.first(word.size() - 1);
    if (before.size() <= answer.size() && std::ranges::equal(before, answer.last(before.size())))
      forbidden.push_back(word.back());
  }
  std::ranges::sort(forbidden);
  const auto is_forbidden = [&](int32_t id) {
    return (!params.allowed_mask.empty() && !has_bit(params.allowed_mask, id)) ||
           std::ranges::binary_search(forbidden, id);
  };
  if (!params.allowed_ids.empty()) return std::ranges::all_of(params.allowed_ids, is_forbidden);
  return std::ranges::all_of(std::views::iota(0, static_cast<int32_t>(vocab_size)), is_forbidden);
}

const char* reason_name(FinishReason reason) {
  static constexpr std::array kNames = {"", "stop", "length", "abort", "error", "error"};
  return kNames[static_cast<size_t>(reason)];
}

Request::Request(std::vector<int32_t> prompt, std::shared_ptr<const RequestParams> params,
                 std::shared_ptr<const Tokenizer> tokenizer, int64_t vocab_size)
    : params_(std::move(params)),
      tokenizer_(std::move(tokenizer)),
      vocab_size_(vocab_size),
      choices_(to_size(params_->given.n)),
      num_running_(choices_.size()) {
  output_.prompt_token_ids = std::move(prompt);
  output_.arrival_time = steady_seconds();
  const SamplingParams& given = params_->given;
  if (given.prompt_logprobs) output_.prompt_logprobs.resize(output_.prompt_token_ids.size());
  if (tokenizer_ == nullptr || !given.detokenize) return;
  for (Choice& choice : choices_) {
    choice.detokenizer.emplace(*tokenizer_, given.skip_special_tokens);
    if (!params_->stop.empty()) choice.stop_strings.emplace(params_->stop);
  }
}

void Request::continue_text() {
  for (Choice& choice : choices_)
    if (choice.detokenizer) choice.detokenizer->continue_text();
}

void Request::show_special_tokens(const std::vector<int32_t>& ids) {
  for (Choice& choice : choices_)
    if (choice.detokenizer) choice.detokenizer->show(ids);
}

bool Request::apply(const SequenceUpdate& change, double now, RequestUpdate& update) {
  const Sequence& seq = *change.seq;
  Choice& choice = choices_[to_size(seq.choice)];
  update.begin(id(), seq.choice, now);
  if (change.status == RowStatus::kOk) {
    const int32_t token = seq.token_ids.back();
    if (output_.first_token_time == 0) output_.first_token_time = update.time;
    choice.output.token_ids.push_back(token);
    update.token_ids.push_back(token);
    if (params_->given.logprobs) {
      update.logprobs.assign(change.logprobs.begin(), change.logprobs.end());
      choice.output.logprobs.push_back(update.logprobs);
      choice.output.cumulative_logprob =
          choice.output.cumulative_logprob.value_or(0) + double{change.logprobs.front().logprob};
    }
    // A token that ends the answer is shown only if it is a special one and those are kept.
    const bool shown = !std::ranges::binary_search(params_->stop_ids, token) ||
                       seq.finish_reason != FinishReason::kStop ||
                       (tokenizer_ != nullptr && tokenizer_->is_special(token));
    if (choice.detokenizer && shown) add_text(choice, choice.detokenizer->push(token), update.text);
    if (seq.finish_reason == FinishReason::kStop &&
        std::ranges::count(params_->given.stop_token_ids, token) > 0)
      choice.output.stop_reason = token;
  } else if (change.status == RowStatus::kNotFinite) {
    choice.output.is_request_at_fault = allows_no_token(seq, vocab_size_);
    const char* reason = "the logits are not finite";
    if (seq.constraint)
      reason =
          "the logits are not finite, or no token that is allowed continues the form of the answer";
    if (choice.output.is_request_at_fault)
      reason = params_->has_allowed_ids()
                   ? "bad_words and min_tokens leave no token of allowed_token_ids"
                   : "bad_words and min_tokens leave no token of the vocabulary";
    choice.output.error =
        fmt::format("no token can be drawn at position {}: {}", seq.num_known(), reason);
  }
  if (seq.choice == 0) output_.num_cached_tokens = seq.num_cached_tokens.value_or(0);
  const bool stopped = choice.stop_strings && choice.stop_strings->matched();
  if (stopped || seq.is_finished()) end(choice, seq.finish_reason, update);
  else choice.output.text += update.text;
  return stopped;
}

void Request::add_text(Choice& choice, const std::string& piece, std::string& new_text) {
  if (!choice.stop_strings) {
    new_text += piece;
    return;
  }
  const bool may_stop = std::ssize(choice.output.token_ids) > params_->given.min_tokens;
  new_text += choice.stop_strings->push(piece, /*ignore=*/!may_stop);
}

void Request::end_all(FinishReason reason, const std::function<RequestUpdate&()>& next_update) {
  const double now = steady_seconds();
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].output.finish_reason.empty()) continue;
    RequestUpdate& update = next_update();
    update.begin(id(), static_cast<int32_t>(i), now);
    end(choices_[i], reason, update);
  }
}

void Request::end(Choice& choice, FinishReason reason, RequestUpdate& update) {
  const auto stop_found = [&] { return choice.stop_strings && choice.stop_strings->matched(); };
  if (choice.detokenizer && !stop_found())
    add_text(choice, choice.detokenizer->finish(), update.text);
  if (stop_found()) {
    reason = FinishReason::kStop;
    choice.output.stop_reason = *choice.stop_strings->matched();
  } else if (choice.stop_strings) {
    update.text += choice.stop_strings->finish();
  }
  choice.output.text += update.text;
  if (reason == FinishReason::kNoMemory)
    choice.output.error = "there is not enough memory for the request";
  choice.output.finish_reason = update.finish_reason = reason_name(reason);
  update.stop_reason = choice.output.stop_reason;
  if (--num_running_ > 0) return;
  output_.finish_time = update.time;
  for (Choice& choice : choices_) output_.outputs.push_back(std::move(choice.output));
  static_cast<CompletionOutput&>(output_) = output_.outputs.front();
  update.finished = std::make_unique<RequestOutput>(std::move(output_));
}

}  // namespace nanovllm
