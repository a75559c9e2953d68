#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

/// Functions to wait until a word changes in memory that several processes share. std::atomic's own
/// wait() only works within one process.
namespace nanovllm {

/// Returns when futex_wake_all() is called for the word, after `milliseconds`, at once if the word
/// is not `seen`, or for no reason. So the caller must check the word again.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int milliseconds) {
  const timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace nanovllm
