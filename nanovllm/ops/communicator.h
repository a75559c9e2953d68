#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "nanovllm/base/tensor.h"

namespace nanovllm {

/// Which of an engine's ranks this is.
struct Rank {
  int index = 0;
  int world = 1;  ///< how many there are
};

/// Elements [first, first + count).
struct Range {
  int64_t first = 0, count = 0;
};

/// What a rank gets of `total` elements that are dealt out in runs of `unit`: the ranks' parts
/// follow each other, differ by one run at most, and the last one holds what is less than a run.
Range share(int64_t total, int64_t unit, Rank rank);

/// The vocabulary and the MLP's columns are dealt out in runs that suit every kernel's tiles and
/// hold whole Philox counters (four ids each).
inline constexpr int64_t kShareUnit = 16;

/// The ranks of one engine on one host: memory that all of them map, and the collectives through
/// it. All ranks call the same collectives in the same order, each from one thread at a time. They
/// throw EngineDead (UserError where abort() was told so) once any rank called abort().
class Communicator {
 public:
  /// Of the memory. What nobody touches of it costs nothing.
  static size_t bytes();
  /// Over `memory` that all ranks share, zero before the first of them comes, and outlives this.
  Communicator(void* memory, Rank rank);

  Rank rank() const { return rank_; }
  /// How often a rank looks for another one before it sleeps: for about as long as it takes to be
  /// woken. Not at all where there are more ranks than processors: the other one needs this one's.
  int looks_before_sleep() const { return looks_before_sleep_; }

  // -- collectives
  void barrier();
  /// all [world, bytes] = each rank's `mine`. At most 16 MiB in all.
  void all_gather(const void* mine, size_t bytes, void* all);
  int64_t smallest(int64_t value);
  /// x, dense and in host memory, becomes its sum over the ranks, added in their order, in float32
  /// (int32 for int32): the same bits on each.
  void all_reduce(Tensor x);
  /// Whole rows [R, num_columns] float32 out of each rank's columns `part` [R, n], which begin at
  /// `first`; in shared memory, to be read before the next collective. At most max_rows() rows.
  Tensor join_columns(Tensor part, int64_t first, int64_t num_columns);
  static int64_t max_rows(int64_t num_columns);

  // -- failures and progress; any thread
  /// Ends every collective of every rank, now and later. The first call's reason counts.
  void abort(const std::string& why, bool is_user_error = false);
  bool aborted() const { return shared_.aborted.load(std::memory_order_relaxed) != 0; }
  /// Throws what abort() was told.
  [[noreturn]] void throw_aborted() const;
  /// What ends, in this process, waits that cannot look at the abort flag; none: nothing any more,
  /// and a call of it under way has returned. It may be called from any thread.
  void set_on_abort(std::function<void()> end_waits);
  /// Calls that: whoever watches over the ranks does when it finds that abort() was called, since
  /// the thread that computes may be stuck in such a wait.
  void end_waits();
  /// Not 0 after abort(): for device code, which polls it where it waits for another rank.
  const std::atomic<uint32_t>& abort_flag() const { return shared_.aborted; }
  /// Counts what any rank achieved: collectives here, on a device each launch that came back.
  /// Ranks that hang leave it as it is.
  std::atomic<uint64_t>& progress() { return shared_.progress; }

 private:
  /// At the beginning of the memory; two windows of data follow, used in turn, so that a rank may
  /// still read one while another writes the next collective's. What many ranks write stands on
  /// cache lines of its own.
  struct Shared {                   // NOLINT(clang-analyzer-optin.performance.Padding)
    std::atomic<uint32_t> aborted;  // 1: its reason is being written, 2: it is there
    uint32_t is_user_error;
    char why[1024];
    alignas(64) std::atomic<uint32_t> num_arrived;
    alignas(64) std::atomic<uint32_t> num_barriers;
    alignas(64) std::atomic<uint64_t> progress;
  };
  char* next_window();

  Shared& shared_;
  Rank rank_;
  int looks_before_sleep_;
  uint64_t num_windows_ = 0;  // used so far
  std::mutex mutex_;          // of the next
  std::function<void()> on_abort_;
};

}  // namespace nanovllm
