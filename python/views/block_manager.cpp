#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "python/convert.h"
#include "python/views/views.h"

namespace nb = nanobind;

namespace nanovllm {

/// Reads BlockPool's private members.
struct BlockPoolState {
  /// A pool that was made by hand has no tenants, so its hashes may be those that compute_hash
  /// gives.
  static void make_hashes_known(BlockPool& pool) { pool.hash_key_ = 0; }
  static int64_t ref_count(const BlockPool& pool, int32_t id) { return pool.block(id).ref_count; }
  static std::optional<uint64_t> hash(const BlockPool& pool, int32_t id) {
    return pool.block(id).hash;
  }
  static const std::vector<int32_t>& token_ids(const BlockPool& pool, int32_t id) {
    return pool.block(id).token_ids;
  }
  static const std::unordered_map<uint64_t, int32_t>& cached(const BlockPool& pool) {
    return pool.cached_;
  }
  static std::vector<int32_t> free_ids(const BlockPool& pool) {
    std::vector<int32_t> ids;
    for (int32_t id = pool.num_used_; id < pool.num_blocks(); ++id) ids.push_back(id);
    ids.insert(ids.end(), pool.free_.begin(), pool.free_.end());
    return ids;
  }
};

namespace python {

namespace {

/// A block as a Python object, which shows the block's present state.
struct BlockView {
  Blocks blocks;
  int32_t id = 0;

  std::optional<uint64_t> hash() const { return BlockPoolState::hash(*blocks, id); }
  std::vector<int32_t> token_ids() const {
    return hash() ? BlockPoolState::token_ids(*blocks, id) : std::vector<int32_t>();
  }
};

/// Whether the pool has blocks for the sequence, of which the cached ones are `prefix`.
bool can_allocate(const Blocks& blocks, const Sequence& seq, std::vector<int32_t>& prefix) {
  blocks->match_prefix(seq, prefix);
  const auto is_free = [&](int32_t id) { return BlockPoolState::ref_count(*blocks, id) == 0; };
  const int64_t num_new = ceil_div(seq.num_known(), blocks->block_size()) - std::ssize(prefix);
  return num_new + std::ranges::count_if(prefix, is_free) <= blocks->num_free();
}

// Allocates blocks like the scheduler in the step that admits a sequence and computes its whole
// prompt.
void allocate(const Blocks& blocks, SequenceView& view, nb::handle /*num_cached_blocks*/) {
  view.require_own("allocate its blocks");
  Sequence& seq = *view.seq;
  require(seq.block_table.empty(), "sequence {} already has blocks", view.seq_id);
  const int64_t num_blocks = ceil_div(seq.num_known(), blocks->block_size());
  std::vector<int32_t> prefix;
  require(can_allocate(blocks, seq, prefix),
          "sequence {} needs {} blocks, {} of them cached, and {} are free", view.seq_id,
          num_blocks, prefix.size(), blocks->num_free());
  view.set_blocks(blocks);
  blocks->allocate(seq, prefix, num_blocks);
  const auto num_hit = static_cast<int64_t>(prefix.size()) * blocks->block_size();
  if (!seq.num_cached_tokens) seq.num_cached_tokens = std::min(num_hit, seq.num_known() - 1);
  seq.num_computed = seq.num_known();
  blocks->register_blocks(seq, seq.num_computed);
}

void require_blocks(const Blocks& blocks, const SequenceView& view) {
  require(view.blocks == blocks && !view.seq->block_table.empty(),
          "sequence {} has no blocks of this block manager; call allocate first", view.seq_id);
}

int64_t num_missing(const Blocks& blocks, const SequenceView& view) {
  return ceil_div(view.seq->num_known(), blocks->block_size()) -
         static_cast<int64_t>(view.seq->block_table.size());
}

void register_full(const Blocks& blocks, const SequenceView& view) {
  const auto num_slots = static_cast<int64_t>(view.seq->block_table.size()) * blocks->block_size();
  view.seq->num_computed = std::min(view.seq->num_known(), num_slots);
  blocks->register_blocks(*view.seq, view.seq->num_computed);
}

void append(const Blocks& blocks, SequenceView& view) {
  view.require_own("append blocks");
  require_blocks(blocks, view);
  while (num_missing(blocks, view) > 0) {
    require(blocks->append(*view.seq, 1), "sequence {} needs one more block, and none is free",
            view.seq_id);
  }
  register_full(blocks, view);
}

}  // namespace

namespace {
constexpr int64_t kMost = 1'000'000;
}

void require_block_size(int64_t block_size) {
  require(block_size >= 1 && block_size <= kMost, "block_size is {}; it must be 1 to {}",
          block_size, kMost);
}

std::shared_ptr<CacheManager> make_cache(int64_t num_blocks, int64_t block_size, bool caching) {
  require(num_blocks >= 1 && num_blocks <= kMost, "num_kvcache_blocks is {}; it must be 1 to {}",
          num_blocks, kMost);
  require_block_size(block_size);
  auto cache = std::make_shared<CacheManager>(BlockPool(num_blocks, block_size, caching));
  BlockPoolState::make_hashes_known(cache->blocks());
  return cache;
}

Blocks make_blocks(int64_t num_blocks, int64_t block_size, bool caching) {
  const auto cache = make_cache(num_blocks, block_size, caching);
  return {cache, &cache->blocks()};
}

void bind_block_manager(nb::module_& m) {
  using State = BlockPoolState;
  nb::class_<BlockView>(m, "Block", "A block of the KV cache, with the state that it has now.")
      .def_ro("block_id", &BlockView::id)
      .def_prop_ro("ref_count",
                   [](const BlockView& b) { return State::ref_count(*b.blocks, b.id); })
      .def_prop_ro(
          "hash", [](const BlockView& b) { return b.hash() ? nb::int_(*b.hash()) : nb::int_(-1); },
          "The hash under which it is in the prefix cache, else -1.")
      .def_prop_ro("token_ids", &BlockView::token_ids,
                   "Its tokens if it is in the prefix cache, else empty.")
      .def("__repr__", [](const BlockView& b) {
        return fmt::format("Block(block_id={}, ref_count={}, token_ids=[{}])", b.id,
                           State::ref_count(*b.blocks, b.id), fmt::join(b.token_ids(), ", "));
      });
  nb::class_<BlockPool>(m, "BlockManager",
                        "The pool of KV blocks: reference counts, the prefix cache, and the "
                        "free blocks in the order of their reuse.")
      .def(nb::new_(&make_blocks), nb::arg("num_blocks"), nb::arg("block_size"),
           nb::arg("enable_prefix_caching") = true)
      .def_prop_ro("block_size", &BlockPool::block_size)
      .def_prop_ro("blocks",
                   [](const Blocks& blocks) {
                     nb::list list;
                     for (int32_t id = 0; id < blocks->num_blocks(); ++id)
                       list.append(BlockView{blocks, id});
                     return list;
                   })
      .def_prop_ro("free_block_ids", &State::free_ids, "In the order in which they are reused.")
      .def_prop_ro("used_block_ids",
                   [](const BlockPool& blocks) {
                     std::set<int32_t> ids;
                     for (int32_t id = 0; id < blocks.num_blocks(); ++id)
                       if (State::ref_count(blocks, id) > 0) ids.insert(id);
                     return ids;
                   })
      .def_prop_ro("hash_to_block_id", &State::cached)
      .def_static(
          "compute_hash",
          [](nb::handle token_ids, nb::handle prefix) {
            uint64_t previous = 0;
            if (!nb::try_cast(prefix, previous) && nb::cast<int64_t>(prefix) != -1)
              fail("prefix must be the hash of a block, or -1");
            const std::vector<int32_t> ids = to_token_ids(token_ids, "token_ids");
            require(!ids.empty(), "a block without tokens has no hash");
            return block_hash(previous, ids);
          },
          nb::arg("token_ids"), nb::arg("prefix") = -1,
          "The hash of a full block; prefix is the hash of the block before it.")
      .def(
          "can_allocate",
          [](const Blocks& blocks, const SequenceView& view) {
            std::vector<int32_t> prefix;
            return can_allocate(blocks, *view.seq, prefix);
          },
          nb::arg("seq"))
      .def("allocate", &allocate, nb::arg("seq"), nb::arg("num_cached_blocks") = nb::none(),
           "Fills the block table with the cached prefix and new blocks, and registers the full "
           "ones, as a step that computes all tokens. `num_cached_blocks` is not needed.")
      .def(
          "can_append",
          [](const Blocks& blocks, const SequenceView& view) {
            require_blocks(blocks, view);
            return num_missing(blocks, view) <= blocks->num_free();
          },
          nb::arg("seq"))
      .def("may_append", &append, nb::arg("seq"),
           "Appends a block if the tokens need one, and registers the full ones.")
      .def(
          "hash_blocks",
          [](const Blocks& blocks, SequenceView& view) {
            view.require_own("register its blocks");
            require_blocks(blocks, view);
            register_full(blocks, view);
          },
          nb::arg("seq"), "Registers the full blocks in the prefix cache.")
      .def(
          "deallocate",
          [](const Blocks& blocks, SequenceView& view) {
            view.require_own("deallocate its blocks");
            require_blocks(blocks, view);
            blocks->deallocate(*view.seq);
            view.seq->num_computed = 0;
          },
          nb::arg("seq"))
      .def("reset_prefix_cache", &BlockPool::reset_prefix_cache);
}

}  // namespace python
}  // namespace nanovllm
