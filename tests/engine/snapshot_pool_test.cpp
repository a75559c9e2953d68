#include "nanovllm/engine/snapshot_pool.h"

#include <gtest/gtest.h>

namespace nanovllm {
namespace {

/// A pool, and the step that is planned.
struct Steps {
  explicit Steps(int64_t size) : pool(size) {}
  std::optional<SnapshotRef> take() { return pool.take(4, step); }
  /// The number of the snapshot that the next step replaces.
  int32_t take_in_next_step() {
    ++step;
    return take()->number;
  }
  /// Another step saves a state, which is then found under the block.
  SnapshotRef store_in_next_step(const BlockRef& block) {
    ++step;
    const SnapshotRef snapshot = *take();
    pool.store(snapshot, block);
    return snapshot;
  }
  SnapshotPool pool;
  uint64_t step = 0;
};

TEST(SnapshotPool, LeastRecentlyUsedIsReplacedFirst) {
  Steps t(3);
  const SnapshotRef a = t.store_in_next_step({7, 0}), b = t.store_in_next_step({8, 0});
  const SnapshotRef c = t.store_in_next_step({9, 0});
  t.pool.use(a.number);
  EXPECT_EQ(t.take_in_next_step(), b.number);
  EXPECT_EQ(t.take_in_next_step(), c.number);
  EXPECT_EQ(t.take_in_next_step(), a.number);
}

TEST(SnapshotPool, StateIsFoundOnlyUnderTheContentsOfItsBlock) {
  Steps t(2);
  const SnapshotRef old = t.store_in_next_step({7, 3});
  EXPECT_EQ(t.pool.find({7, 3})->number, old.number);
  EXPECT_EQ(t.pool.find({7, 4}), nullptr);
  EXPECT_EQ(t.pool.find({8, 3}), nullptr);
  const SnapshotRef reused = t.store_in_next_step({7, 4});
  EXPECT_EQ(t.pool.find({7, 3}), nullptr);
  EXPECT_EQ(t.pool.find({7, 4})->number, reused.number);
  EXPECT_EQ(t.take_in_next_step(), old.number);
  EXPECT_EQ(t.pool.find({7, 4})->number, reused.number);
}

TEST(SnapshotPool, KnowsWhichStepSavesAState) {
  Steps t(1);
  t.store_in_next_step({7, 0});
  EXPECT_EQ(t.pool.find({7, 0})->step, t.step);
  t.store_in_next_step({8, 0});
  EXPECT_EQ(t.pool.find({8, 0})->step, t.step);
}

TEST(SnapshotPool, TwoStatesOfOneStepGetTwoSnapshots) {
  Steps t(2);
  ++t.step;
  const SnapshotRef first = *t.take();
  t.pool.drop(first);
  EXPECT_NE(t.take()->number, first.number);
  EXPECT_FALSE(t.take().has_value());
  EXPECT_EQ(t.take_in_next_step(), first.number);
}

TEST(SnapshotPool, ReplacedStateIsNeverFound) {
  Steps t(1);
  const SnapshotRef replaced = t.store_in_next_step({7, 0});
  EXPECT_EQ(t.take_in_next_step(), replaced.number);
  EXPECT_EQ(t.pool.find({7, 0}), nullptr);
  t.pool.store(replaced, {8, 0});
  EXPECT_EQ(t.pool.find({8, 0}), nullptr);
  const SnapshotRef now = t.store_in_next_step({9, 0});
  EXPECT_EQ(t.pool.find({9, 0})->number, now.number);
  EXPECT_EQ(t.pool.find({7, 0}), nullptr);
}

TEST(SnapshotPool, BlockKeepsItsFirstStateAndTheSecondIsReplacedNext) {
  Steps t(3);
  const SnapshotRef first = t.store_in_next_step({7, 0}), second = t.store_in_next_step({7, 0});
  EXPECT_EQ(t.pool.find({7, 0})->number, first.number);
  EXPECT_EQ(t.take_in_next_step(), second.number);
}

TEST(SnapshotPool, DroppedStateIsReplacedNextAndFoundUntilThen) {
  Steps t(3);
  t.store_in_next_step({7, 0});
  const SnapshotRef dropped = t.store_in_next_step({8, 0});
  t.pool.drop(dropped);
  EXPECT_EQ(t.pool.find({8, 0})->number, dropped.number);
  EXPECT_EQ(t.take_in_next_step(), dropped.number);
  EXPECT_EQ(t.pool.find({8, 0}), nullptr);
  t.pool.drop(dropped);  // of a former state: changes nothing
  EXPECT_NE(t.take_in_next_step(), dropped.number);
}

TEST(SnapshotPool, WithoutMemoryNoStateIsSaved) {
  Steps t(0);
  EXPECT_FALSE(t.take().has_value());
  EXPECT_EQ(t.pool.find({7, 0}), nullptr);
}

}  // namespace
}  // namespace nanovllm
