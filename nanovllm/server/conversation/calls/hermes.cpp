#include <optional>

#include "nanovllm/server/conversation/calls/json_call.h"
#include "nanovllm/server/conversation/calls/readers.h"
#include "nanovllm/server/conversation/calls/tag_matcher.h"

namespace nanovllm::server {

namespace {

class HermesReader final : public CallReader {
 public:
  explicit HermesReader(OfferedTools tools) : tools_(std::move(tools)) {}

  std::string_view first_characters() const override { return "<"; }

 private:
  enum class State { kOpening, kBeforeObject, kObject, kClosing, kAfter };

  void begin() override {
    state_ = State::kOpening;
    opening_.restart();
    closing_.restart();
    object_.restart();
  }

  Verdict next(char c) override {
    switch (state_) {
      case State::kOpening:
        if (const int tag = opening_.read(c); tag == TagMatcher::kNone) return text(1);
        else if (tag >= 0) state_ = State::kBeforeObject;
        return Verdict::kUndecided;
      case State::kBeforeObject:
        if (is_space(c)) return Verdict::kUndecided;
        state_ = State::kObject;
        [[fallthrough]];
      case State::kObject:
        if (const auto step = object_.read(c); step == JsonObjectEnd::Step::kInvalid)
          return text(1);
        else if (step == JsonObjectEnd::Step::kEnd) state_ = State::kClosing;
        return Verdict::kUndecided;
      case State::kClosing:
        if (is_space(c) && !closing_.has_begun()) return Verdict::kUndecided;
        if (const int tag = closing_.read(c); tag == TagMatcher::kNone)
          return text(closing_.length() + 1);
        else if (tag == TagMatcher::kPartly) return Verdict::kUndecided;
        return complete();
      case State::kAfter:
        return text_after_calls();
    }
    return Verdict::kUndecided;
  }

  Verdict last() override {
    if (state_ == State::kAfter) return Verdict::kEnd;
    return state_ == State::kClosing ? complete() : text(0);
  }

  Verdict complete() {
    std::optional<FunctionCall> found = json_call(object_.text(), tools_);
    if (!found) return text(0);
    state_ = State::kAfter;
    return call(*std::move(found));
  }

  const OfferedTools tools_;
  State state_ = State::kOpening;
  TagMatcher opening_{"<tool_call>"}, closing_{"</tool_call>"};
  JsonObjectEnd object_;
};

}  // namespace

CallReaderPtr hermes_reader(OfferedTools tools) {
  return std::make_unique<HermesReader>(std::move(tools));
}

}  // namespace nanovllm::server
