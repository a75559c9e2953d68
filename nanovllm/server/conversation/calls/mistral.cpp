#include <string>

#include "nanovllm/server/conversation/calls/json_call.h"
#include "nanovllm/server/conversation/calls/readers.h"
#include "nanovllm/server/conversation/calls/tag_matcher.h"

namespace nanovllm::server {

namespace {

class MistralReader final : public CallReader {
 public:
  explicit MistralReader(const OfferedTools& tools)
      : tools_(tools), list_(json_reader(tools, /*takes_tags=*/false)) {}

  std::string_view first_characters() const override { return "["; }

 private:
  enum class State {
    kOpening,
    kBeforeCall,  // a list, an object or a name must follow
    kBracket,     // behind a bracket, of a list or of another opening tag
    kList,        // list_ reads the text
    kName,
    kMark,  // in [ARGS] or [CALL_ID]
    kId,
    kBeforeArguments,
    kArguments,
    kAfter
  };

  void begin() override {
    state_ = State::kOpening;
    opening_.restart();
    mark_.restart();
    list_->restart();
    name_.clear();
  }

  Verdict next(char c) override {
    switch (state_) {
      case State::kOpening:
        if (const int tag = opening_.read(c); tag == TagMatcher::kNone) return text(1);
        else if (tag >= 0) state_ = State::kBeforeCall;
        return Verdict::kUndecided;
      case State::kBeforeCall:
        return before_call(c);
      case State::kBracket:
        if (c == 'T') return text(2);
        state_ = State::kList;
        list_->read('[');
        [[fallthrough]];
      case State::kList:
        return of_list(list_->read(c));
      case State::kName:
        if (is_in_name(c)) {
          name_ += c;
          return Verdict::kUndecided;
        }
        if (tools_.find(name_) == nullptr) return text(1);
        return before_arguments(c);
      case State::kMark:
        if (const int mark = mark_.read(c); mark == TagMatcher::kNone)
          return text(mark_.length() + 1);
        else if (mark >= 0) state_ = mark == 0 ? State::kBeforeArguments : State::kId;
        return Verdict::kUndecided;
      case State::kId:
        if (is_in_name(c)) return Verdict::kUndecided;
        [[fallthrough]];
      case State::kBeforeArguments:
        return before_arguments(c);
      case State::kArguments:
        return arguments(c);
      case State::kAfter:
        return text_after_calls();
    }
    return Verdict::kUndecided;
  }

  Verdict last() override {
    if (state_ == State::kAfter) return Verdict::kEnd;
    return state_ == State::kList ? of_list(list_->end()) : text(0);
  }

  Verdict before_call(char c) {
    if (is_space(c)) return Verdict::kUndecided;
    if (c == '[') {
      state_ = State::kBracket;
      return Verdict::kUndecided;
    }
    if (c == '{') {
      state_ = State::kList;
      return of_list(list_->read(c));
    }
    if (!is_in_name(c)) return text(1);
    name_ = c;
    state_ = State::kName;
    return Verdict::kUndecided;
  }

  Verdict of_list(Verdict verdict) {
    if (verdict == Verdict::kText) return text(list_->num_unread());
    if (verdict == Verdict::kCalls) calls_ = list_->take_calls();
    return verdict == Verdict::kCalls ? calls(0) : verdict;
  }

  Verdict before_arguments(char c) {
    state_ = State::kBeforeArguments;
    if (is_space(c)) return Verdict::kUndecided;
    if (c == '[') {
      state_ = State::kMark;
      mark_.restart();
      mark_.read(c);
      return Verdict::kUndecided;
    }
    if (c != '{') return text(1);
    state_ = State::kArguments;
    arguments_.restart();
    return arguments(c);
  }

  Verdict arguments(char c) {
    const JsonObjectEnd::Step step = arguments_.read(c);
    if (step == JsonObjectEnd::Step::kInvalid) return text(1);
    if (step == JsonObjectEnd::Step::kMore) return Verdict::kUndecided;
    if (!parse_object(arguments_.text())) return text(0);
    state_ = State::kAfter;
    return call({.name = name_, .arguments = arguments_.text()});
  }

  const OfferedTools tools_;
  State state_ = State::kOpening;
  TagMatcher opening_{"[TOOL_CALLS]"}, mark_{"[ARGS]", "[CALL_ID]"};
  const CallReaderPtr list_;
  std::string name_;
  JsonObjectEnd arguments_;
};

}  // namespace

CallReaderPtr mistral_reader(const OfferedTools& tools) {
  return std::make_unique<MistralReader>(tools);
}

}  // namespace nanovllm::server
