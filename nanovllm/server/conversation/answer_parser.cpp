#include "nanovllm/server/conversation/answer_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "nanovllm/server/conversation/calls/characters.h"

namespace nanovllm::server {

namespace {

constexpr std::string_view kNewline = "\n";

}  // namespace

void AnswerParts::append(AnswerParts more) {
  reasoning += more.reasoning;
  content += more.content;
  std::move(more.calls.begin(), more.calls.end(), std::back_inserter(calls));
}

AnswerParser::AnswerParser(const Options& options)
    : begins_in_reasoning_(options.begins_in_reasoning),
      parallel_calls_(options.parallel_calls),
      call_form_(options.call_form),
      calls_(options.tools.empty() ? nullptr : call_reader(options.call_form, options.tools)),
      hidden_tags_(options.hidden_tags),
      state_(options.splits_reasoning ? State::kBeginning : State::kContent) {}

AnswerParts AnswerParser::add(std::string_view piece) {
  AnswerParts parts;
  for (const char c : piece) read(c, parts);
  return parts;
}

AnswerParts AnswerParser::finish() {
  AnswerParts parts;
  if (state_ == State::kBeginning) leave_beginning(parts);
  if (state_ == State::kCalls) {
    const Verdict verdict = calls_->end();
    if (verdict == Verdict::kCalls) deliver_calls(parts);
    if (verdict == Verdict::kEnd) held_.clear();
    state_ = State::kContent;
  }
  const bool drops_spaces = state_ == State::kThoughts || follows_call_;
  const bool only_spaces = held_.find_first_not_of(kSpaces) == std::string::npos;
  if (!drops_spaces || !only_spaces) deliver(parts);
  hidden_tags_.flush(state_ == State::kThoughts ? parts.reasoning : parts.content);
  return parts;
}

void AnswerParser::read(char c, AnswerParts& parts) {
  switch (state_) {
    case State::kBeginning:
      held_ += c;
      if (matched_ == 0 && is_one_of(kSpaces, c)) break;
      if (kThink[matched_] != c) {
        leave_beginning(parts);
      } else if (++matched_ == kThink.size()) {
        drop_held_and_enter(State::kThoughts, parts);
      }
      break;
    case State::kThoughts:
      read_thoughts(c, parts);
      break;
    case State::kContent:
      read_content(c, parts);
      break;
    case State::kCalls:
      read_calls(c, parts);
      break;
  }
}

/// Newlines are held back, because they are not delivered if the tag follows.
void AnswerParser::read_thoughts(char c, AnswerParts& parts) {
  if (is_one_of(skipped_, c)) return;
  skipped_ = {};
  if (matched_ > 0 && kThinkEnd[matched_] != c) deliver(parts);
  held_ += c;
  if (kThinkEnd[matched_] == c) {
    if (++matched_ == kThinkEnd.size()) drop_held_and_enter(State::kContent, parts);
  } else if (!is_one_of(kNewline, c)) {
    deliver(parts);
  }
}

/// White space is held back, because it is not delivered if a call follows.
void AnswerParser::read_content(char c, AnswerParts& parts) {
  if (is_one_of(skipped_, c)) return;
  skipped_ = {};
  if (calls_ != nullptr && is_one_of(calls_->first_characters(), c)) {
    state_ = State::kCalls;
    read_calls(c, parts);
    return;
  }
  held_ += c;
  if (calls_ == nullptr || !is_one_of(kSpaces, c)) deliver(parts);
}

void AnswerParser::read_calls(char c, AnswerParts& parts) {
  held_ += c;
  switch (calls_->read(c)) {
    case Verdict::kUndecided:
      break;
    case Verdict::kCalls:
      deliver_calls(parts);
      break;
    case Verdict::kEnd:
      held_.clear();
      state_ = State::kContent;
      break;
    case Verdict::kText:
      give_up_call(parts);
      break;
    case Verdict::kContent:
      deliver(parts);
      break;
  }
}

/// A part of the answer ends with the tag in held_. The newlines after the tag are dropped too.
void AnswerParser::drop_held_and_enter(State state, AnswerParts& parts) {
  if (state_ == State::kThoughts) hidden_tags_.flush(parts.reasoning);
  held_.clear();
  matched_ = 0;
  state_ = state;
  skipped_ = kNewline;
}

/// Leaves the beginning of an answer that has no <think> there.
void AnswerParser::leave_beginning(AnswerParts& parts) {
  state_ = begins_in_reasoning_ ? State::kThoughts : State::kContent;
  if (begins_in_reasoning_) skipped_ = kNewline;
  matched_ = 0;
  for (const char c : std::exchange(held_, {})) read(c, parts);
}

/// Makes text that was read and is no call content. White space and the beginning of a tag at its
/// end may belong to the next call.
void AnswerParser::give_up_call(AnswerParts& parts) {
  state_ = State::kContent;
  size_t end = held_.size() - calls_->num_unread();
  if (end < held_.size()) end = end == 0 ? 0 : held_.find_last_not_of(kSpaces, end - 1) + 1;
  const std::string rest = held_.substr(end);
  held_.resize(end);
  deliver(parts);
  for (const char c : rest) read(c, parts);
}

void AnswerParser::deliver_calls(AnswerParts& parts) {
  hidden_tags_.flush(parts.content);
  for (FunctionCall& call : calls_->take_calls()) {
    const int index = num_calls_++;
    if (index == 0 || parallel_calls_)
      parts.calls.push_back({.index = index,
                             .id = new_call_id(call_form_),
                             .name = std::move(call.name),
                             .arguments = std::move(call.arguments)});
  }
  held_.erase(0, held_.size() - calls_->num_unread());
  follows_call_ = true;
  if (!has_content_) skipped_ = kSpaces;
}

void AnswerParser::deliver(AnswerParts& parts) {
  held_.erase(0, std::min(held_.find_first_not_of(skipped_), held_.size()));
  if (held_.empty()) return;
  skipped_ = {};
  if (state_ == State::kThoughts) {
    hidden_tags_.append(parts.reasoning, held_);
  } else {
    hidden_tags_.append(parts.content, held_);
    has_content_ = true;
    follows_call_ = false;
  }
  held_.clear();
  matched_ = 0;
}

AnswerParts parse_answer(std::string_view text, const AnswerParser::Options& options) {
  AnswerParser parser(options);
  AnswerParts answer = parser.add(text);
  answer.append(parser.finish());
  return answer;
}

}  // namespace nanovllm::server
