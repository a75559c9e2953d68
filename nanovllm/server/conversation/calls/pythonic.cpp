#include <optional>
#include <string>

#include "nanovllm/server/conversation/calls/python_literal.h"
#include "nanovllm/server/conversation/calls/readers.h"
#include "nanovllm/server/conversation/calls/tag_matcher.h"

namespace nanovllm::server {

namespace {

/// Finds the bracket that closes the arguments of a call. Text that cannot be literals is noticed
/// early; json_of_keywords() finds all other errors.
class ArgumentsEnd {
 public:
  enum class Step { kMore, kEnd, kInvalid };

  Step read(char c) {
    if (quote_ != '\0') {
      if (c == '\n') return Step::kInvalid;
      if (escaped_) escaped_ = false;
      else if (c == '\\') escaped_ = true;
      else if (c == quote_) quote_ = '\0';
    } else if (c == ')' && depth_ == 0) {
      return Step::kEnd;
    } else if (!may_follow(before_, c)) {
      return Step::kInvalid;
    } else {
      if (!is_space(c)) before_ = c;
      if (c == '\'' || c == '"') quote_ = c;
      if (c == '[' || c == '{') ++depth_;
      if (c == ']' || c == '}') --depth_;
    }
    text_ += c;
    return Step::kMore;
  }
  /// The arguments, without the bracket.
  const std::string& text() const { return text_; }
  void restart() { *this = {}; }

 private:
  bool may_follow(char before, char c) const {
    if (is_one_of("[{'\"", c)) return is_one_of("=:,[{", before);
    if (is_one_of("]}", c)) return depth_ > 0;
    return is_space(c) || is_in_name(c) || is_one_of("=:,+", c);
  }

  std::string text_;
  size_t depth_ = 0;    // open brackets
  char before_ = '\0';  // the last character outside of strings that is not white space
  char quote_ = '\0';
  bool escaped_ = false;
};

class PythonicReader final : public CallReader {
 public:
  explicit PythonicReader(OfferedTools tools) : tools_(std::move(tools)) {}

  std::string_view first_characters() const override { return "<["; }

 private:
  enum class State {
    kStart,
    kOpening,     // in a tag
    kBeforeList,  // [ must follow
    kBeforeName,  // in the list
    kName,
    kArguments,
    kAfterCall,
    kAfterList,
    kClosing  // in a tag
  };

  void begin() override {
    state_ = State::kStart;
    opening_.restart();
    closing_.restart();
    num_behind_call_ = 0;
    has_element_ = false;
  }

  Verdict next(char c) override {
    ++num_behind_call_;
    switch (state_) {
      case State::kStart:
        if (c == '[') {
          state_ = State::kBeforeName;
          return Verdict::kUndecided;
        }
        state_ = State::kOpening;
        [[fallthrough]];
      case State::kOpening:
        if (const int tag = opening_.read(c); tag == TagMatcher::kNone) return text(1);
        else if (tag >= 0) state_ = State::kBeforeList;
        return Verdict::kUndecided;
      case State::kBeforeList:
        if (is_space(c)) return Verdict::kUndecided;
        if (c != '[') return text(1);
        state_ = State::kBeforeName;
        return Verdict::kUndecided;
      case State::kBeforeName:
        if (is_space(c)) return Verdict::kUndecided;
        if (c == ']' && has_element_) return end_list();
        if (!is_in_name(c)) return text(1);
        name_.clear();
        state_ = State::kName;
        [[fallthrough]];
      case State::kName:
        return name(c);
      case State::kArguments:
        return arguments(c);
      case State::kAfterCall:
        return after_call(c);
      case State::kAfterList:
        if (is_space(c)) return Verdict::kUndecided;
        state_ = State::kClosing;
        [[fallthrough]];
      case State::kClosing:
        if (const int tag = closing_.read(c); tag == TagMatcher::kNone) return text_after_calls();
        else if (tag == TagMatcher::kPartly) return Verdict::kUndecided;
        return Verdict::kEnd;
    }
    return Verdict::kUndecided;
  }

  Verdict last() override {
    if (state_ == State::kAfterList || state_ == State::kClosing) return Verdict::kEnd;
    if (!has_element_) return text(0);
    const bool is_behind_call = state_ == State::kAfterCall || state_ == State::kBeforeName;
    return calls(is_behind_call ? 0 : num_behind_call_);
  }

  Verdict name(char c) {
    if (is_in_name(c)) {
      name_ += c;
      return Verdict::kUndecided;
    }
    if (c != '(' || tools_.find(name_) == nullptr) return text(1);
    arguments_.restart();
    state_ = State::kArguments;
    return Verdict::kUndecided;
  }

  Verdict arguments(char c) {
    const ArgumentsEnd::Step step = arguments_.read(c);
    if (step == ArgumentsEnd::Step::kInvalid) return text(1);
    if (step == ArgumentsEnd::Step::kMore) return Verdict::kUndecided;
    std::optional<std::string> json = json_of_keywords(arguments_.text());
    if (!json) return text(0);
    calls_.push_back({.name = name_, .arguments = *std::move(json)});
    has_element_ = true;
    num_behind_call_ = 0;
    state_ = State::kAfterCall;
    return Verdict::kUndecided;
  }

  Verdict after_call(char c) {
    if (is_space(c)) return Verdict::kUndecided;
    if (c == ',') {
      state_ = State::kBeforeName;
      return Verdict::kUndecided;
    }
    return c == ']' ? end_list() : text(1);
  }

  Verdict end_list() {
    state_ = State::kAfterList;
    return calls(0);
  }

  const OfferedTools tools_;
  State state_ = State::kStart;
  TagMatcher opening_{"<|python_start|>"}, closing_{"<|python_end|>"};
  std::string name_;
  ArgumentsEnd arguments_;
  size_t num_behind_call_ = 0;  // bytes that were read since the last complete call
  bool has_element_ = false;    // the list has a complete call
};

}  // namespace

CallReaderPtr pythonic_reader(OfferedTools tools) {
  return std::make_unique<PythonicReader>(std::move(tools));
}

}  // namespace nanovllm::server
