#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

/// Sleeping until a word of memory that several processes share changes; std::atomic's own wait()
/// wakes threads of one process alone.
namespace nanovllm {

/// Returns when somebody wakes the word, after `milliseconds`, at once where it is not `seen`, or
/// for no reason.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, int milliseconds) {
  const timespec timeout = {milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace nanovllm
