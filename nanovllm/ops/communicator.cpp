#include "nanovllm/ops/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/futex.h"
#include "nanovllm/base/system/machine.h"

namespace nanovllm {

namespace {

// A row of logits of the largest vocabulary fits.
constexpr size_t kWindowBytes = size_t{16} << 20;
constexpr size_t kHeaderBytes = 4096;
// all_reduce processes this many bytes of each rank at a time, so that they stay in the processor's
// cache.
constexpr size_t kPieceBytes = size_t{1} << 20;
// Up to this many bytes an all-reduce is one-shot: every rank computes the whole sum, because the
// second barrier of the two-shot algorithm would cost more.
constexpr size_t kOneShotBytes = 16384;
// About 25 us. A longer wait gains nothing, and it delays the other rank if both are on one
// processor.
constexpr int kPollsBeforeSleep = 1000;
// How often a sleeping rank checks whether abort() was called.
constexpr int kSleepMilliseconds = 50;

/// out[i] = the sum of slots[rank * stride + i] over the ranks, added in the order of the ranks.
/// The stride is in bytes.
template <class T, class Sum, class Load, class Store>
void add_up(char* out, const char* slots, size_t stride, int64_t count, int world, Load load,
            Store store) {
  constexpr int64_t kBlock = 256;
  Sum sum[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    const T* x = reinterpret_cast<const T*>(slots) + first;
    for (int64_t i = 0; i < n; ++i) sum[i] = load(x[i]);
    for (int r = 1; r < world; ++r) {
      x = reinterpret_cast<const T*>(slots + static_cast<size_t>(r) * stride) + first;
      for (int64_t i = 0; i < n; ++i) sum[i] += load(x[i]);
    }
    T* const to = reinterpret_cast<T*>(out) + first;
    for (int64_t i = 0; i < n; ++i) to[i] = store(sum[i]);
  }
}

void add_up(DType dtype, char* out, const char* slots, size_t stride, int64_t count, int world) {
  const auto same = [](auto x) { return x; };
  // Lambdas are inlined; function calls would take longer than the sums.
  const auto from_bf16 = [](uint16_t x) { return bf16_to_f32(x); };
  const auto to_bf16 = [](float x) { return f32_to_bf16(x); };
  switch (dtype) {
    case DType::kF32:
      return add_up<float, float>(out, slots, stride, count, world, same, same);
    case DType::kBF16:
      return add_up<uint16_t, float>(out, slots, stride, count, world, from_bf16, to_bf16);
    case DType::kF16:
      return add_up<uint16_t, float>(out, slots, stride, count, world, f16_to_f32, f32_to_f16);
    case DType::kI32:
      return add_up<int32_t, int32_t>(out, slots, stride, count, world, same, same);
    default:
      check(false, "no sums of {}", dtype_name(dtype));
  }
}

}  // namespace

size_t Communicator::bytes() { return kHeaderBytes + 2 * kWindowBytes; }

Communicator::Communicator(void* memory, Rank rank)
    : shared_(*static_cast<Shared*>(memory)),
      rank_(rank),
      polls_before_sleep_(rank.world <= num_usable_cpus() ? kPollsBeforeSleep : 0) {
  static_assert(sizeof(Shared) <= kHeaderBytes);
}

void Communicator::barrier() {
  const auto world = static_cast<uint32_t>(rank_.world);
  const uint32_t seen = shared_.num_barriers.load();
  if (aborted()) throw_aborted();
  if (shared_.num_arrived.fetch_add(1) + 1 == world) {
    shared_.num_arrived = 0;
    shared_.num_barriers = seen + 1;
    futex_wake_all(shared_.num_barriers);
  } else {
    for (int polls = 0; shared_.num_barriers.load() == seen; ++polls) {
      if (aborted()) throw_aborted();
      if (polls < polls_before_sleep_) __builtin_ia32_pause();
      else futex_wait(shared_.num_barriers, seen, kSleepMilliseconds);
    }
  }
  shared_.progress.fetch_add(1, std::memory_order_relaxed);
}

char* Communicator::next_window() {
  return reinterpret_cast<char*>(&shared_) + kHeaderBytes + num_windows_++ % 2 * kWindowBytes;
}

void Communicator::all_gather(const void* mine, size_t bytes, void* all) {
  const auto world = static_cast<size_t>(rank_.world);
  check(bytes * world <= kWindowBytes, "all_gather of {} bytes from {} ranks", bytes, world);
  char* const window = next_window();
  std::memcpy(window + bytes * static_cast<size_t>(rank_.index), mine, bytes);
  barrier();
  std::memcpy(all, window, bytes * world);
}

int64_t Communicator::smallest(int64_t value) {
  std::vector<int64_t> all(static_cast<size_t>(rank_.world));
  all_gather(&value, sizeof value, all.data());
  return *std::ranges::min_element(all);
}

void Communicator::all_reduce(Tensor x) {
  if (x.size() == 0) return;  // on all ranks, or on none
  check(x.rank == 1 || x.row_stride == x.size() / x.shape[0], "all_reduce: rows with gaps");
  const size_t size = dtype_size(x.dtype), world = static_cast<size_t>(rank_.world);
  const size_t stride = std::min(kPieceBytes, kWindowBytes / world / 64 * 64);
  for (size_t at = 0; at < x.bytes(); at += stride) {
    char* const piece = x.as<char>() + at;
    const size_t bytes = std::min(stride, x.bytes() - at);
    const auto count = static_cast<int64_t>(bytes / size);
    char* const slots = next_window();
    std::memcpy(slots + stride * static_cast<size_t>(rank_.index), piece, bytes);
    barrier();
    if (bytes <= kOneShotBytes) {
      add_up(x.dtype, piece, slots, stride, count, rank_.world);
      continue;
    }
    // Two-shot: each rank sums one part of the piece, writes it over rank 0's data, and reads the
    // other sums.
    const Range mine = share(count, 64, rank_);
    char* const sum = slots + static_cast<size_t>(mine.first) * size;
    add_up(x.dtype, sum, sum, stride, mine.count, rank_.world);
    barrier();
    std::memcpy(piece, slots, bytes);
  }
}

int64_t Communicator::max_rows(int64_t num_columns) {
  return static_cast<int64_t>(kWindowBytes / sizeof(float)) / num_columns;
}

Tensor Communicator::join_columns(Tensor part, int64_t first, int64_t num_columns) {
  const int64_t num_rows = part.shape[0];
  check(part.dtype == DType::kF32 && num_rows <= max_rows(num_columns) &&
            first + part.shape[1] <= num_columns,
        "join_columns: [{}, {}] from column {} of {}", num_rows, part.shape[1], first, num_columns);
  const Tensor whole(next_window(), DType::kF32, num_rows, num_columns);
  for (int64_t i = 0; i < num_rows; ++i)
    std::memcpy(whole.rows(i, 1).as<float>() + first, part.rows(i, 1).data,
                static_cast<size_t>(part.shape[1]) * sizeof(float));
  barrier();
  return whole;
}

void Communicator::abort(const std::string& why, bool is_user_error) {
  uint32_t none = 0;
  if (!shared_.aborted.compare_exchange_strong(none, 1)) return;
  shared_.is_user_error = is_user_error ? 1 : 0;
  why.copy(shared_.why, sizeof shared_.why - 1);
  shared_.aborted = 2;
  futex_wake_all(shared_.num_barriers);
}

void Communicator::set_on_abort(std::function<void()> end_waits) {
  const std::lock_guard lock(mutex_);
  on_abort_ = std::move(end_waits);
}

void Communicator::end_waits() {
  const std::lock_guard lock(mutex_);
  if (on_abort_) on_abort_();
}

void Communicator::throw_aborted() const {
  // Whoever aborts writes the reason within microseconds, unless its process ends just then.
  for (int i = 0; i < 1000 && shared_.aborted != 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (shared_.aborted != 2) throw EngineDead("another rank failed");
  if (shared_.is_user_error != 0) throw UserError(shared_.why);
  throw EngineDead(shared_.why);
}

}  // namespace nanovllm
