#include <string>

#include "nanovllm/server/conversation/calls/readers.h"

namespace nanovllm::server {

namespace {

class AnyReader final : public CallReader {
 public:
  explicit AnyReader(std::vector<CallReaderPtr> readers) {
    for (CallReaderPtr& reader : readers) {
      for (const char c : reader->first_characters())
        if (first_characters_.find(c) == std::string::npos) first_characters_ += c;
      readers_.push_back({.reader = std::move(reader)});
    }
  }

  std::string_view first_characters() const override { return first_characters_; }

 private:
  struct Candidate {
    CallReaderPtr reader;
    bool reads = true;  // the text may still have the form of this reader
  };

  void begin() override {
    for (Candidate& candidate : readers_) {
      candidate.reader->restart();
      candidate.reads = true;
    }
  }

  Verdict next(char c) override {
    return verdict_of([c](CallReader& reader) { return reader.read(c); });
  }
  Verdict last() override {
    return verdict_of([](CallReader& reader) { return reader.end(); });
  }

  template <class Ask>
  Verdict verdict_of(Ask ask) {
    Verdict verdict = Verdict::kText;
    for (Candidate& candidate : readers_) {
      if (!candidate.reads) continue;
      switch (ask(*candidate.reader)) {
        case Verdict::kUndecided:
          verdict = Verdict::kUndecided;
          break;
        case Verdict::kCalls:
          return choose(candidate);
        case Verdict::kEnd:
          return Verdict::kEnd;
        case Verdict::kContent:
        case Verdict::kText:
          candidate.reads = false;
          last_unread_ = candidate.reader->num_unread();
      }
    }
    return verdict == Verdict::kText ? text(last_unread_) : verdict;
  }

  Verdict choose(Candidate& chosen) {
    for (Candidate& candidate : readers_) candidate.reads = &candidate == &chosen;
    calls_ = chosen.reader->take_calls();
    return calls(chosen.reader->num_unread());
  }

  std::vector<Candidate> readers_;
  std::string first_characters_;
  size_t last_unread_ = 0;  // num_unread() of the reader that has read most
};

}  // namespace

CallReaderPtr any_reader(std::vector<CallReaderPtr> readers) {
  return std::make_unique<AnyReader>(std::move(readers));
}

}  // namespace nanovllm::server
