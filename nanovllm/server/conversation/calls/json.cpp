#include <optional>

#include "nanovllm/server/conversation/calls/json_call.h"
#include "nanovllm/server/conversation/calls/readers.h"
#include "nanovllm/server/conversation/calls/tag_matcher.h"

namespace nanovllm::server {

namespace {

class JsonReader final : public CallReader {
 public:
  JsonReader(OfferedTools tools, bool takes_tags)
      : tools_(std::move(tools)), takes_tags_(takes_tags) {}

  std::string_view first_characters() const override { return takes_tags_ ? "{[<`" : "{["; }

 private:
  enum class State {
    kStart,
    kOpening,     // in a tag
    kBeforeCall,  // a list or an object must follow
    kKey,         // the first key of an object
    kCall,        // an object that may be a call
    kOther,       // an object that is no call
    kAfter,       // another call may follow, or the end of the list
    kClosing      // in a tag
  };

  void begin() override {
    state_ = State::kStart;
    opening_.restart();
    closing_.restart();
    in_list_ = had_list_ = has_calls_ = false;
  }

  Verdict next(char c) override {
    switch (state_) {
      case State::kStart:
        if (!takes_tags_ || c == '{') return before_call(c);
        state_ = State::kOpening;
        [[fallthrough]];
      case State::kOpening:
        return opening(c);
      case State::kBeforeCall:
        return before_call(c);
      case State::kKey:
        return key(c);
      case State::kCall:
        return of_call(c);
      case State::kOther:
        return of_other(c);
      case State::kAfter:
        return after(c);
      case State::kClosing:
        return closing(c);
    }
    return Verdict::kUndecided;
  }

  Verdict last() override {
    const bool is_between =
        state_ == State::kBeforeCall || state_ == State::kAfter || state_ == State::kClosing;
    return has_calls_ && is_between ? Verdict::kEnd : text(0);
  }

  Verdict opening(char c) {
    // This bracket may also begin a tag.
    if (opening_.begun() == "[" && c != 'T') {
      before_call('[');
      return before_call(c);
    }
    const int tag = opening_.read(c);
    if (tag == TagMatcher::kNone) return text(1);
    if (tag >= 0) state_ = State::kBeforeCall;
    return Verdict::kUndecided;
  }

  Verdict before_call(char c) {
    if (is_space(c)) return Verdict::kUndecided;
    if (c == '{') return open_object(c);
    if (has_calls_) return text_after_calls();
    if (c != '[' || had_list_) return text(1);
    in_list_ = had_list_ = true;
    state_ = State::kBeforeCall;
    return Verdict::kUndecided;
  }

  Verdict open_object(char c) {
    object_.restart();
    object_.read(c);
    key_.restart();
    state_ = State::kKey;
    return Verdict::kUndecided;
  }

  /// Most objects in an answer are no calls, and this is clear after their first key.
  Verdict key(char c) {
    if (!is_space(c) || key_.has_begun()) {
      const int tag = key_.read(c);
      if (tag == TagMatcher::kNone) return of_other(c);
      if (tag >= 0) state_ = State::kCall;
    }
    return object_.read(c) == JsonObjectEnd::Step::kInvalid ? text(1) : Verdict::kUndecided;
  }

  /// Reads on in an object that is no call. Nothing inside of it is a call either.
  Verdict of_other(char c) {
    state_ = State::kOther;
    const JsonObjectEnd::Step step = object_.read(c);
    if (step == JsonObjectEnd::Step::kMore) return Verdict::kContent;
    return text(step == JsonObjectEnd::Step::kInvalid ? 1 : 0);
  }

  Verdict of_call(char c) {
    const JsonObjectEnd::Step step = object_.read(c);
    if (step == JsonObjectEnd::Step::kInvalid) return text(1);
    if (step == JsonObjectEnd::Step::kMore) return Verdict::kUndecided;
    std::optional<FunctionCall> found = json_call(object_.text(), tools_);
    if (!found) return text(0);
    has_calls_ = true;
    state_ = State::kAfter;
    return call(*std::move(found));
  }

  Verdict after(char c) {
    if (is_space(c)) return Verdict::kUndecided;
    if (c == '{') return open_object(c);
    if (c == ';' || c == ',') {
      state_ = State::kBeforeCall;
      return Verdict::kUndecided;
    }
    if (c == ']' && in_list_) {
      in_list_ = false;
      return calls(0);
    }
    state_ = State::kClosing;
    return closing(c);
  }

  Verdict closing(char c) {
    const int tag = closing_.read(c);
    if (tag == TagMatcher::kNone) return text_after_calls();
    return tag >= 0 ? Verdict::kEnd : Verdict::kUndecided;
  }

  const OfferedTools tools_;
  const bool takes_tags_;
  State state_ = State::kStart;
  TagMatcher opening_{"<|python_tag|>", "<|python_start|>", "[TOOL_CALLS]", "```json"},
      key_{"\"name\"", "\"arguments\"", "\"parameters\"", "\"type\"", "\"id\""},
      closing_{"<|python_end|>", "```"};
  JsonObjectEnd object_;
  bool in_list_ = false, had_list_ = false, has_calls_ = false;
};

}  // namespace

CallReaderPtr json_reader(OfferedTools tools, bool takes_tags) {
  return std::make_unique<JsonReader>(std::move(tools), takes_tags);
}

}  // namespace nanovllm::server
