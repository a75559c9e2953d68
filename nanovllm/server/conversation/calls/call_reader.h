#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/server/conversation/calls/characters.h"
#include "nanovllm/server/conversation/calls/offered_tools.h"

namespace nanovllm::server {

/// A call of an offered function.
struct FunctionCall {
  std::string name;
  std::string arguments;  ///< the text of a JSON object
};

/// The judgement of a reader on the text that it has read since its last verdict, not counting
/// kUndecided.
enum class Verdict {
  kUndecided,  ///< nothing is known yet
  kCalls,      ///< the text ends with calls, or closes calls, and more of them may follow
  kEnd,        ///< the text closes the calls before it, and no more of them follow
  kText,       ///< the text is content, but its end may be the beginning of a call
  kContent     ///< the text is content, and so is the following text until another verdict
};

/// Finds out whether text is calls in one of the forms in which models write them, character by
/// character. So the time is proportional to the length of the text, and it does not matter in
/// which pieces the text comes. A reader gets the text from a character on with which a call may
/// begin. After kEnd and kText it is like a new one. Each form has a class.
class CallReader {
 public:
  virtual ~CallReader() = default;

  /// The characters with which a call may begin.
  virtual std::string_view first_characters() const = 0;
  Verdict read(char c) {
    ++num_read_;
    return settled(next(c));
  }
  /// Ends the text, because the answer ends here.
  Verdict end() { return settled(last()); }
  /// Forgets the text that was read.
  void restart() {
    num_read_ = 0;
    calls_.clear();
    begin();
  }
  /// Returns the calls, after kCalls.
  std::vector<FunctionCall> take_calls() { return std::exchange(calls_, {}); }
  /// After kText: how many bytes at the end of the text may begin a call and are to be read again.
  /// After kCalls: how many bytes at the end do not belong to the calls and are content, which
  /// only happens at the end of the answer.
  size_t num_unread() const { return num_unread_; }

 protected:
  virtual Verdict next(char c) = 0;
  virtual Verdict last() = 0;
  /// Prepares for new text.
  virtual void begin() = 0;

  Verdict text(size_t num_unread) {
    num_unread_ = num_unread;
    return Verdict::kText;
  }
  /// The verdict on text since the last calls in which no call has begun.
  Verdict text_after_calls() { return text(num_read_); }
  Verdict call(FunctionCall found) {
    calls_.push_back(std::move(found));
    return calls(0);
  }
  Verdict calls(size_t num_unread) {
    num_unread_ = num_unread;
    return Verdict::kCalls;
  }

  std::vector<FunctionCall> calls_;

 private:
  Verdict settled(Verdict verdict) {
    if (verdict == Verdict::kCalls || verdict == Verdict::kContent) num_read_ = 0;
    if (verdict == Verdict::kEnd || verdict == Verdict::kText) restart();
    return verdict;
  }

  size_t num_read_ = 0;  // bytes since the last calls or content
  size_t num_unread_ = 0;
};

}  // namespace nanovllm::server
