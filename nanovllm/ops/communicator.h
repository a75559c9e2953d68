#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/rows.h"

namespace nanovllm {

/// What connects the ranks of one engine on one host: shared memory, and collectives through it.
/// All ranks call the same collectives in the same order (order.alike), each rank from one thread
/// at a time. After any rank has called abort(), they throw EngineDead (or UserError, if abort()
/// was called with is_user_error).
class Communicator {
 public:
  /// The size of the shared memory. Pages that are never touched take no physical memory.
  static size_t bytes();
  /// `memory` is shared by all ranks, was filled with zeros before the first of them used it, and
  /// must outlive this object.
  Communicator(void* memory, Rank rank);

  Rank rank() const { return rank_; }
  /// How often a rank checks whether another one has arrived before it sleeps: for about as long as
  /// waking it would take. It is 0 if there are more ranks than processors, because the other rank
  /// may need this processor.
  int polls_before_sleep() const { return polls_before_sleep_; }

  // -- collectives
  void barrier();
  /// all [world, bytes] = `mine` of each rank. At most 16 MiB in total.
  void all_gather(const void* mine, size_t bytes, void* all);
  /// The smallest `value` of all ranks.
  int64_t smallest(int64_t value);
  /// Replaces x, which must be dense and in host memory, by its sum over the ranks. The sum is
  /// computed in the order of the ranks, in float32 (int32 for int32), so every rank gets the same
  /// bits.
  void all_reduce(Tensor x);
  /// Rows [R, num_columns] float32, put together from the columns `part` [R, n] of each rank, which
  /// begin at column `first`. The result is in shared memory and must be read before the next
  /// collective. R is at most max_rows().
  Tensor join_columns(Tensor part, int64_t first, int64_t num_columns);
  static int64_t max_rows(int64_t num_columns);

  // -- failures and progress; any thread may call these (progress.nobody-waits-for-the-dead)
  /// Makes every collective of every rank throw, now and later. The reason of the first call is
  /// kept.
  void abort(const std::string& why, bool is_user_error = false);
  bool aborted() const { return shared_.aborted.load(std::memory_order_relaxed) != 0; }
  /// Throws the error that abort() was called with.
  [[noreturn]] void throw_aborted() const;
  /// Sets the function that ends, in this process, waits that cannot check the abort flag. It may
  /// be called from any thread. An empty function removes it; when this returns, no call of the
  /// previous one is running.
  void set_on_abort(std::function<void()> end_waits);
  /// Calls that function. The thread that watches the ranks does so when it finds that abort() was
  /// called, because the computing thread may be stuck in such a wait.
  void end_waits();
  /// Not 0 after abort(). Device code polls it while it waits for another rank.
  const std::atomic<uint32_t>& abort_flag() const { return shared_.aborted; }
  /// A counter that any rank increments when it makes progress: with each collective, each step,
  /// each piece of a weight that was loaded, and each event of a device that completed. It does not
  /// change while all ranks hang.
  std::atomic<uint64_t>& progress() { return shared_.progress; }

 private:
  /// The beginning of the shared memory. Two windows of data follow, which are used alternately, so
  /// that one rank may still read a window while another one writes for the next collective.
  /// Counters that many ranks write have cache lines of their own.
  struct Shared {                   // NOLINT(clang-analyzer-optin.performance.Padding)
    std::atomic<uint32_t> aborted;  // 1: the reason is being written, 2: it is written
    uint32_t is_user_error;
    char why[1024];
    alignas(64) std::atomic<uint32_t> num_arrived;
    alignas(64) std::atomic<uint32_t> num_barriers;
    alignas(64) std::atomic<uint64_t> progress;
  };
  char* next_window();

  Shared& shared_;
  Rank rank_;
  int polls_before_sleep_;
  uint64_t num_windows_ = 0;  // how many were used so far
  std::mutex mutex_;          // protects on_abort_
  std::function<void()> on_abort_;
};

}  // namespace nanovllm
