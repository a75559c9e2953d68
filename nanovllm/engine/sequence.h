#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/engine/request_params.h"
#include "nanovllm/text/constraint.h"

namespace nanovllm {

enum class SequenceStatus { kWaiting, kRunning, kFinished };
/// reason_name() has their names, in this order.
enum class FinishReason { kNone, kStop, kLength, kAbort, kError, kNoMemory };

/// A block with certain contents: each reuse of the block increments its generation.
struct BlockRef {
  int32_t id = -1;
  uint32_t generation = 0;
  bool operator==(const BlockRef&) const = default;
};

/// The recurrent states after `depth` tokens; each replacement increments the generation.
struct SnapshotRef {
  int32_t number = -1;
  uint32_t generation = 0;
  int64_t depth = 0;
};

/// A text that separates the prefix caches of tenants; null: none was given.
using CacheSalt = std::shared_ptr<const std::string>;

/// One answer while it is generated: its tokens, and where its KV cache is stored. A request with n
/// choices is n sequences. Only scheduler and cache manager change it (`ownership.sequences`).
struct Sequence {
  uint64_t id = 0;  ///< unique; in the order of arrival and, within a request, of the choices
  uint64_t request_id = 0;
  int32_t choice = 0;
  std::shared_ptr<const RequestParams> params;
  int64_t max_tokens = 0;  ///< of the answer; Scheduler::add() bounds it by the context
  uint64_t seed = 0;
  std::shared_ptr<Constraint> constraint;  ///< null: any token may come next
  CacheSalt cache_salt;                    ///< prompts with different salts share no blocks

  SequenceStatus status = SequenceStatus::kWaiting;
  FinishReason finish_reason = FinishReason::kNone;

  std::vector<int32_t> token_ids;  ///< the prompt, then the sampled tokens that the host has read
  int64_t num_prompt_tokens = 0;
  int64_t num_unread = 0;     ///< tokens sampled by submitted steps whose output was not read yet
  int64_t num_computed = 0;   ///< tokens whose K and V are stored, or will be by a submitted step
  int64_t num_in_flight = 0;  ///< submitted steps with a row of this sequence, not read yet
  uint64_t last_step = 0;     ///< the newest step that has a row of it
  std::optional<int64_t> num_cached_tokens;  ///< at the first admission
  int64_t num_prompt_logprobs_read = 0;  ///< prompt positions whose log-probabilities the host has

  int32_t slot = -1;
  int64_t num_blocks_sent = 0;       ///< entries of block_table that the ranks know
  std::vector<int32_t> block_table;  ///< blocks of the cache, in order

  // The chain of block hashes, which the block pool keeps: the first num_hashed blocks are hashed.
  int64_t num_hashed = 0;
  std::optional<uint64_t> last_hash;
  BlockRef last_block;  ///< the registered block with the content of block num_hashed - 1

  // For the snapshots of recurrent states, which the cache manager keeps.
  int64_t branch = 0;              ///< a depth at which one is taken: CacheHit::branch
  std::vector<SnapshotRef> saved;  ///< by depth: those that nobody can find yet
  SnapshotRef last_of_answer;

  /// Other choices of the request that wait for this one's prompt to be computed.
  std::vector<Sequence*> choices;

  /// All tokens of the sequence, including those that the host has not read yet.
  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()) + num_unread; }
  int64_t num_known() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_generated() const { return num_tokens() - num_prompt_tokens; }
  /// Tokens that still have to be computed before the next one can be drawn.
  int64_t num_pending() const { return num_tokens() - num_computed; }
  /// The length at which the answer ends, prompt included.
  int64_t final_len() const { return num_prompt_tokens + max_tokens; }
  bool is_finished() const { return status == SequenceStatus::kFinished; }
  bool wants_prompt_logprobs() const {
    return choice == 0 && params->given.prompt_logprobs &&
           num_prompt_logprobs_read < num_prompt_tokens - 1;
  }
};

}  // namespace nanovllm
