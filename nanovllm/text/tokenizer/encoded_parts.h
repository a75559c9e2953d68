#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nanovllm {

/// A cache of the ids of parts: the texts between added tokens that Tokenizer::encode() has met.
/// The ids of a part depend on nothing else in the text, whatever the tokenizer. In a conversation
/// the turns are parts, because templates write added tokens such as <|im_end|> around them; so a
/// server that gets a conversation again, with one more turn, computes only the ids of the new
/// turn.
///
/// It holds at most `max_bytes` of texts and ids. Each owner, such as a client, has its own parts,
/// and the owner that holds most loses its least recently used ones first. So nobody can find out
/// by measuring the time which texts others have sent, only how much. The hash of a text is keyed
/// by a random number, so that no client can choose texts that share a bucket
/// (progress.bounded-work). Any thread may call it.
class EncodedParts {
 public:
  explicit EncodedParts(size_t max_bytes);

  struct Key {
    std::string_view owner;
    bool at_start;  ///< at the start of the text, where a few tokenizers add a space
    std::string_view text;
  };

  /// Appends the ids of a part and returns true, or returns false if they are unknown.
  bool find(const Key& key, std::vector<int32_t>& ids);
  void add(const Key& key, std::span<const int32_t> ids);
  size_t num_bytes() const;

  /// The shortest part that is kept. A shorter one is encoded as fast as it is found.
  static constexpr size_t kLeastBytes = 64;
  /// The most owners. If there are more, the one that was idle for longest is forgotten.
  static constexpr size_t kMaxOwners = 256;

 private:
  struct Entry {
    std::string text;
    bool at_start = false;
    std::vector<int32_t> ids;

    size_t num_bytes() const;
  };
  struct Hash {
    uint64_t key;
    size_t operator()(std::string_view text) const;
  };
  using Entries = std::list<Entry>;  // the most recently used first
  struct Partition {
    std::string owner;
    Entries entries = {};
    std::unordered_multimap<std::string_view, Entries::iterator, Hash> by_text;
    size_t num_bytes = 0;

    Entries::iterator find(const Key& key);
    void drop_oldest();
  };
  Partition* partition_of(std::string_view owner);
  void make_room();

  const size_t max_bytes_;
  const Hash hash_;
  mutable std::mutex mutex_;         // guards all members below
  std::list<Partition> partitions_;  // the most recently used first
  size_t num_bytes_ = 0;
};

}  // namespace nanovllm
