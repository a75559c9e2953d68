#include <algorithm>
#include <unordered_map>

#include "nanovllm/server/conversation/calls/readers.h"
#include "nanovllm/server/conversation/calls/tag_matcher.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

/// The arguments of a call as they are read.
class Arguments {
 public:
  /// A later value of the same name replaces the earlier one.
  void set(const std::string& name, std::string json) {
    const auto [at, is_new] = places_.emplace(name, values_.size());
    if (is_new) values_.emplace_back(name, std::move(json));
    else values_[at->second].second = std::move(json);
  }
  bool has(const std::string& name) const { return places_.contains(name); }
  bool empty() const { return values_.empty(); }
  /// The arguments as the text of a JSON object.
  std::string text() const {
    std::string text = "{";
    for (const auto& [name, json] : values_) {
      if (text.size() > 1) text += ", ";
      append_json_string(text, name);
      text += ": " + json;
    }
    return text + "}";
  }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::unordered_map<std::string, size_t> places_;  // indices in values_
};

class XmlReader final : public CallReader {
 public:
  explicit XmlReader(OfferedTools tools) : tools_(std::move(tools)) {}

  std::string_view first_characters() const override { return "<"; }

 private:
  enum class State {
    kOpening,   // <tool_call> or <function=
    kFunction,  // <function= must follow
    kName,      // the name of the function
    kBetween,   // a parameter or the end of the function must follow
    kKey,       // the name of a parameter
    kValue,
    kAfter  // </tool_call> may follow
  };

  void begin() override {
    state_ = State::kOpening;
    for (TagMatcher* tags : {&opening_, &function_, &between_, &value_end_, &closing_})
      tags->restart();
    name_.clear();
    arguments_ = {};
  }

  Verdict next(char c) override {
    switch (state_) {
      case State::kOpening:
        return opening(c);
      case State::kFunction:
        return function(c);
      case State::kName:
        return name(c);
      case State::kBetween:
        return between(c);
      case State::kKey:
        return key(c);
      case State::kValue:
        return value(c);
      case State::kAfter:
        return after(c);
    }
    return Verdict::kUndecided;
  }

  Verdict last() override {
    if (state_ == State::kAfter) return Verdict::kEnd;
    if (state_ == State::kValue) end_value_at_call_end();
    const bool may_end = state_ == State::kBetween && !arguments_.empty() &&
                         (!between_.has_begun() || between_.begun().starts_with("</"));
    return may_end && has_all_required() ? complete() : text(0);
  }

  /// Ends the value at </tool_call> if the answer ends there. Elsewhere that tag is part of a
  /// value.
  void end_value_at_call_end() {
    constexpr std::string_view kCallEndTag = "</tool_call>";
    const size_t end = value_.find_last_not_of(" \t\r\n") + 1;
    if (!std::string_view(value_).substr(0, end).ends_with(kCallEndTag)) return;
    value_.resize(end - kCallEndTag.size());
    set_argument();
    state_ = State::kBetween;
  }

  Verdict opening(char c) {
    const int tag = opening_.read(c);
    if (tag == TagMatcher::kNone) return text(1);
    if (tag >= 0) state_ = tag == 0 ? State::kFunction : State::kName;
    return Verdict::kUndecided;
  }

  Verdict function(char c) {
    if (is_space(c) && !function_.has_begun()) return Verdict::kUndecided;
    const int tag = function_.read(c);
    if (tag == TagMatcher::kNone) return text(function_.length() + 1);
    if (tag >= 0) state_ = State::kName;
    return Verdict::kUndecided;
  }

  Verdict name(char c) {
    if (c == '<' || c == '\n') return text(1);
    if (c != '>') {
      name_ += c;
      return Verdict::kUndecided;
    }
    schema_ = tools_.find(name_);
    if (schema_ == nullptr) return text(0);
    state_ = State::kBetween;
    return Verdict::kUndecided;
  }

  Verdict between(char c) {
    if (is_space(c) && !between_.has_begun()) return Verdict::kUndecided;
    const int tag = between_.read(c);
    if (tag == TagMatcher::kNone) return text(between_.length() + 1);
    if (tag == kParameter) {
      key_.clear();
      state_ = State::kKey;
    } else if (tag >= 0) {
      return end_function(tag);
    }
    return Verdict::kUndecided;
  }

  Verdict key(char c) {
    if (c == '<' || c == '\n') return text(1);
    if (c == '>') {
      value_.clear();
      state_ = State::kValue;
    } else {
      key_ += c;
    }
    return Verdict::kUndecided;
  }

  /// Reads a value, which also ends at the next tag if the model has forgotten the closing tag.
  Verdict value(char c) {
    value_ += c;
    int tag = value_end_.read(c);
    if (tag == TagMatcher::kNone) tag = value_end_.read(c);  // another tag may begin here
    if (tag < 0) return Verdict::kUndecided;
    value_.resize(value_.size() - value_end_.length());
    set_argument();
    if (tag == kParameter) key_.clear();
    if (tag == kFunctionEnd) return end_function(tag);
    state_ = tag == kParameter ? State::kKey : State::kBetween;
    return Verdict::kUndecided;
  }

  /// Stores the value without the newlines that belong to the tags.
  void set_argument() {
    std::string_view value = value_;
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    const auto types = schema_->parameters.find(key_);
    arguments_.set(key_,
                   json_of_value(value, types == schema_->parameters.end() ? 0 : types->second));
  }

  bool has_all_required() const {
    return std::ranges::all_of(schema_->required,
                               [&](const std::string& name) { return arguments_.has(name); });
  }

  Verdict end_function(int tag) {
    const Verdict verdict = complete();
    if (tag == kCallEnd) closed_ = true;
    return verdict;
  }

  Verdict complete() {
    state_ = State::kAfter;
    closed_ = false;
    return call({.name = std::exchange(name_, {}), .arguments = arguments_.text()});
  }

  Verdict after(char c) {
    if (closed_) return text_after_calls();
    if (is_space(c) && !closing_.has_begun()) return Verdict::kUndecided;
    const int tag = closing_.read(c);
    if (tag == TagMatcher::kNone) return text_after_calls();
    return tag >= 0 ? Verdict::kEnd : Verdict::kUndecided;
  }

  // The indices of tags in the matchers below.
  static constexpr int kParameter = 0, kFunctionEnd = 1, kCallEnd = 2;

  const OfferedTools tools_;
  State state_ = State::kOpening;
  TagMatcher opening_{"<tool_call>", "<function="}, function_{"<function="},
      between_{"<parameter=", "</function>", "</tool_call>"},
      value_end_{"<parameter=", "</function>", "</parameter>"}, closing_{"</tool_call>"};
  std::string name_, key_, value_;
  Arguments arguments_;
  const ToolSchema* schema_ = nullptr;  // the schema of the function
  bool closed_ = false;                 // whether </tool_call> has closed the call
};

}  // namespace

CallReaderPtr xml_reader(OfferedTools tools) {
  return std::make_unique<XmlReader>(std::move(tools));
}

}  // namespace nanovllm::server
