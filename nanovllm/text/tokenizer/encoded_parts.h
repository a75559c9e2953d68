#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// The ids of texts that Tokenizer::encode() has met between added tokens. The ids of such a part
/// depend on nothing else in the text, whatever the tokenizer. In a conversation the turns are
/// parts, because templates write added tokens such as <|im_end|> around them; so a server that
/// gets a conversation again, with one more turn, computes only the ids of the new turn.
///
/// It holds at most `max_bytes` of texts and ids. A part is looked for in only a few places, so the
/// time does not depend on what clients have sent (progress.bounded-work), and the texts are
/// compared, so equal hashes do no harm. Any thread may call it.
class EncodedParts {
 public:
  explicit EncodedParts(size_t max_bytes);

  struct Key {
    /// Parts of different owners are kept apart, so nobody can find out by measuring the time what
    /// others have sent.
    std::string_view owner;
    bool at_start;  ///< of the text; a few tokenizers add a space there
    std::string_view text;
  };

  /// Appends the ids of a part and returns true, or returns false if they are unknown.
  bool find(const Key& key, std::vector<int32_t>& ids);
  void add(const Key& key, std::span<const int32_t> ids);
  size_t num_bytes() const;

  /// A shorter part is encoded as fast as it is found.
  static constexpr size_t kLeastBytes = 64;

 private:
  static constexpr size_t kNumSets = 2048, kWays = 4;
  struct Entry {
    std::string owner, text;
    bool at_start = false;
    std::vector<int32_t> ids;
    uint64_t last_use = 0;  // 0: the entry is free

    bool is(const Key& key) const;
    size_t num_bytes() const;
  };
  using Set = std::array<Entry, kWays>;
  Set& set_of(const Key& key);
  void replace(Entry& entry, Entry by);

  const size_t max_bytes_;
  mutable std::mutex mutex_;  // guards all members below
  std::vector<Set> sets_;     // [kNumSets]
  size_t num_bytes_ = 0, hand_ = 0;
  uint64_t num_uses_ = 0;
};

}  // namespace nanovllm
