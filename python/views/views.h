#pragma once

#include <nanobind/nanobind.h>
#include <nanovllm/base/check.h>
#include <nanovllm/engine/cache_manager.h>

#include <cstdint>
#include <memory>

/// Views of the engine's own classes with nano-vLLM's names, to look at and to experiment with a
/// scheduler without a model (nanovllm.engine).
namespace nanovllm::python {

using Blocks = std::shared_ptr<BlockPool>;

constexpr int64_t kDefaultBlockSize = EngineConfig().block_size;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A sequence as a Python object. The object owns the sequence before a scheduler takes it and
/// after it has ended: the scheduler frees its sequences, so the object keeps a copy of the end.
struct SequenceView {
  int64_t seq_id = 0;                       ///< in the order of construction
  std::unique_ptr<Sequence> own = nullptr;  ///< null while a scheduler owns the sequence
  Sequence* seq = nullptr;
  Blocks blocks = nullptr;    ///< the block manager that gave it blocks; null before that
  int64_t num_scheduled = 0;  ///< tokens that the latest step computes for it

  int64_t block_size() const;
  int64_t num_blocks() const { return ceil_div(seq->num_known(), block_size()); }
  void take_back() {
    own = std::make_unique<Sequence>(*seq);
    seq = own.get();
    num_scheduled = 0;
  }
  /// Gives the sequence the block size of these blocks. Throws UserError if a script has set
  /// Sequence.block_size to another one.
  void set_blocks(const Blocks& given);
  /// Throws unless the object owns the sequence: a sequence that a scheduler owns must not be
  /// changed by hand.
  void require_own(const char* what) const {
    require(own != nullptr, "sequence {} belongs to a scheduler, which alone may {}", seq_id, what);
  }
};

/// All three throw UserError for a number outside 1 to 1,000,000: more would be a mistake in an
/// experiment.
std::shared_ptr<CacheManager> make_cache(int64_t num_blocks, int64_t block_size,
                                         bool enable_prefix_caching);
Blocks make_blocks(int64_t num_blocks, int64_t block_size, bool enable_prefix_caching);

void require_block_size(int64_t block_size);

void bind_sequence(nanobind::module_& m);
void bind_block_manager(nanobind::module_& m);
void bind_scheduler(nanobind::module_& m);

}  // namespace nanovllm::python
