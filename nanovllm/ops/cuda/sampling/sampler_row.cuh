#pragma once

#include "nanovllm/ops/cuda/device/hopper.cuh"
#include "nanovllm/ops/cuda/sampling/sampler.cuh"

// A row of logits and the passes over it. On Hopper the thread blocks of a cluster hold the row in
// their shared memory, so that it is read from memory once, however many passes a filter needs.
// Elsewhere, and if a row is too long for that, one thread block passes over the row in global
// memory.
namespace nanovllm::cuda::rows {

inline constexpr int kThreads = 512;
inline constexpr int kMaxCluster = 8;
/// How many tokens a Row can list.
inline constexpr int kMaxListed = 2048;

/// What a thread block keeps in shared memory, besides its part of the row.
struct Shared {
  unsigned long long listed[kMaxListed];  // token_key() of a value and an id
  // Of reductions: what each warp and each thread block contributes.
  ulonglong2 warps[kThreads / 32];
  ulonglong2 parts[2][kMaxCluster];
  int num_listed;
  uint32_t highest;  // of the thread block's approximate scores, as ordered()
};

/// Sorts shared.listed[0, count), the largest first: a bitonic sort over the next power of two.
__device__ inline void sort(Shared& shared, int count) {
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) shared.listed[i] = 0;
  for (int run = 2; run <= size; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int low = i + (i & -step), high = low + step;
        const unsigned long long a = shared.listed[low], b = shared.listed[high];
        if ((a < b) == ((low & run) == 0)) {
          shared.listed[low] = b;
          shared.listed[high] = a;
        }
      }
    }
  __syncthreads();
}

/// All threads of the cluster (of the thread block, if there is none) call its functions together,
/// except where it says otherwise, and get the same results.
template <bool kClustered>
class Row {
 public:
  __device__ Row(int vocab, Shared& shared) : shared_(shared), vocab_(vocab), count_(vocab) {
    if (threadIdx.x == 0) shared.num_listed = 0;
    if constexpr (kClustered) {
      num_parts_ = hopper::cluster_size();
      part_ = hopper::cluster_rank();
      width_ = width_of_part(vocab, num_parts_);
      first_ = min(part_ * width_, vocab);
      count_ = min(width_, vocab - first_);
      hopper::cluster_arrive();  // scan() waits until all thread blocks have started
    } else {
      __syncthreads();
    }
  }
  /// The number of tokens of a part, a multiple of four.
  __host__ __device__ static int width_of_part(int vocab, int num_parts) {
    return ((vocab + num_parts - 1) / num_parts + 3) / 4 * 4;
  }
  __device__ int vocab() const { return vocab_; }
  __device__ bool is_first_part() const { return part_ == 0; }
  __device__ bool is_first_thread() const { return is_first_part() && threadIdx.x == 0; }

  /// Takes the row `logits` [vocab] in global memory; with a `copy`, this thread block's part is
  /// copied there, to count_ + 3 floats. Returns RowFlags; `best` becomes the token_key() of the
  /// largest logit.
  __device__ int read(const float* logits, float* copy, unsigned long long& best) {
    values_ = logits + first_;
    is_aligned_ = vocab_ % 4 == 0;
    const int flags = scan(best, [&](int i, const float(&x)[4]) {
      if (copy == nullptr) return;
      if constexpr (kClustered) {
        store<4>(copy + i, {x[0], x[1], x[2], x[3]});
      } else {
        for (int j = 0; j < min(4, count_ - i); ++j) copy[i + j] = x[j];
      }
    });
    if (copy != nullptr) values_ = copy;
    is_aligned_ |= kClustered && copy != nullptr;
    return flags;
  }
  /// The same for the values that are there.
  __device__ int scan(unsigned long long& best) {
    return scan(best, [](int, const float(&)[4]) {});
  }

  /// Calls body(id, x) for the tokens of this thread, four neighbours x[4] at a time: id is a
  /// multiple of four, and x is -infinity beyond the vocabulary.
  template <class Body>
  __device__ void for_each_four(Body body) const {
    for (int i = threadIdx.x * 4; i < count_; i += kThreads * 4) {
      Vec<float, 4> v = fetch(i);
      body(first_ + i, v.x);
    }
  }
  template <class Body>
  __device__ void for_each(Body body) const {
    for_each_four([&](int id, const float(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(id + i, x[i]);
    });
  }
  /// Calls body(i, id) for the ids in this thread block's part among list [count], where `id_of`
  /// gives an entry's id. `body` may change at(id). Ids outside of the vocabulary are left out.
  template <class T, class IdOf, class Body>
  __device__ void for_each_listed(const T* list, int count, IdOf id_of, Body body) const {
    for (int i = threadIdx.x; i < count; i += kThreads)
      if (const int id = id_of(list[i]); first_ <= id && id < first_ + count_) body(list[i], id);
    __syncthreads();
  }
  /// The value of a token in this thread block's part, for changes after read() with a copy.
  __device__ float& at(float* copy, int id) const { return copy[id - first_]; }
  __device__ bool has(int id) const { return first_ <= id && id < first_ + count_; }
  /// The value of any token. Before a thread block ends, the cluster must have had a reduction
  /// after the last call. A single thread may call it.
  __device__ float value_of(int id) const {
    if constexpr (kClustered) {
      const int part = id / width_;
      return hopper::remote_load(values_ + (id - part * width_), part);
    }
    return values_[id];
  }

  /// x and y of all threads, combined. Two at a time, because the barrier takes most of the time.
  template <class CombineX, class CombineY>
  __device__ ulonglong2 reduce(ulonglong2 v, CombineX x, CombineY y) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    v = {warp_reduce(v.x, x), warp_reduce(v.y, y)};
    if (lane == 0) shared_.warps[warp] = v;
    __syncthreads();
    if (!kClustered || warp == 0) {
      v = lane < kThreads / 32 ? shared_.warps[lane] : ulonglong2{};
      v = {warp_reduce(v.x, x), warp_reduce(v.y, y)};
    }
    if constexpr (kClustered) {
      ulonglong2* const parts = shared_.parts[turn_];
      turn_ ^= 1;
      if (threadIdx.x < num_parts_) hopper::remote_store(parts + part_, lane, v);
      hopper::cluster_arrive();
      hopper::cluster_wait();
      v = parts[0];
      for (int i = 1; i < num_parts_; ++i) v = {x(v.x, parts[i].x), y(v.y, parts[i].y)};
    } else {
      __syncthreads();
    }
    return v;
  }
  __device__ ulonglong2 totals(unsigned long long x, unsigned long long y) {
    return reduce({x, y}, Sum(), Sum());
  }
  __device__ unsigned long long total(unsigned long long x) { return totals(x, 0).x; }
  __device__ unsigned long long largest(unsigned long long x) {
    return reduce({x, 0}, Max(), Max()).x;
  }

  /// A value that at least k tokens reach, not much less than the k-th largest, as ordered(); 0 if
  /// there is none. `mine`: the ordered() of the largest value of this thread's tokens.
  __device__ uint32_t bound_of_best(int k, uint32_t mine) {
    constexpr int kGroups = kThreads / 4;
    const uint32_t of_quad = quad_reduce(mine, Max());
    if (threadIdx.x % 4 == 0) shared_.listed[threadIdx.x / 4] = of_quad;
    __syncthreads();
    sort(shared_, kGroups);
    // The largest values of groups of threads are values of different tokens. So at least k tokens
    // reach the k-th largest of them in one part, or the lowest (k / parts)-th of all parts.
    const int each = (k + num_parts_ - 1) / num_parts_;
    const unsigned long long in_one = k <= kGroups ? shared_.listed[k - 1] : 0;
    const unsigned long long in_all = each <= kGroups ? shared_.listed[each - 1] : 0;
    const ulonglong2 found = reduce({in_one, ~in_all}, Max(), Max());
    return static_cast<uint32_t>(max(found.x, ~found.y));
  }
  /// The ordered() of the largest logit of this thread's tokens; 0 if there is none.
  __device__ uint32_t mine() const { return mine_; }

  /// Lists the token_key() of every token for which taken(id, x) is true, sorted, the best first,
  /// in shared.listed of the first part. Returns their number; if it is above kMaxListed, the list
  /// is useless. It can be used once. `value` gives what a logit is sorted by.
  template <class Taken, class Value>
  __device__ int list(Taken taken, Value value) {
    unsigned long long count = 0;
    for_each([&](int id, float x) {
      if (!taken(id, x)) return;
      ++count;
      int at;
      if constexpr (kClustered) at = hopper::remote_add(&shared_.num_listed, 0, 1);
      else at = atomicAdd(&shared_.num_listed, 1);
      if (at >= kMaxListed) return;
      const unsigned long long key = token_key(value(x), id);
      if constexpr (kClustered) hopper::remote_store(shared_.listed + at, 0, key);
      else shared_.listed[at] = key;
    });
    const auto all = static_cast<int>(total(count));
    if (all <= kMaxListed && is_first_part()) sort(shared_, all);
    return all;
  }
  /// Entry i of the list, in every thread.
  __device__ unsigned long long listed(int i) {
    return largest(is_first_thread() ? shared_.listed[i] : 0);
  }

 private:
  __device__ Vec<float, 4> fetch(int i) const {
    if (is_aligned_) return load<4>(values_ + i);
    Vec<float, 4> v;
#pragma unroll
    for (int j = 0; j < 4; ++j) v.x[j] = i + j < count_ ? values_[i + j] : -INFINITY;
    return v;
  }
  template <class Store>
  __device__ int scan(unsigned long long& best, Store store) {
    bool is_bad = false;
    float highest = -INFINITY;
    int highest_id = -1;
    constexpr int kPrefetched = 4;  // groups whose loads are in flight
    const auto next = [&](int i) {
      return i < count_ ? fetch(i) : Vec<float, 4>{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    };
    for (int base = threadIdx.x * 4; base < count_; base += kPrefetched * kThreads * 4) {
      Vec<float, 4> groups[kPrefetched];
#pragma unroll
      for (int j = 0; j < kPrefetched; ++j) groups[j] = next(base + j * kThreads * 4);
#pragma unroll
      for (int j = 0; j < kPrefetched; ++j) {
        const int i = base + j * kThreads * 4;
        if (i >= count_) break;
        store(i, groups[j].x);
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          const float x = groups[j].x[l];
          is_bad |= !(x < INFINITY);
          if (x > highest) {
            highest = x;
            highest_id = first_ + i + l;
          }
        }
      }
    }
    mine_ = highest_id < 0 ? 0 : ordered(highest);
    if constexpr (kClustered)
      if (!has_started_) hopper::cluster_wait();
    has_started_ = true;
    const ulonglong2 found = reduce(
        {highest_id < 0 ? 0 : token_key(highest, highest_id), is_bad ? 1ull : 0ull}, Max(), Max());
    best = found.x;
    return (found.y != 0 ? kRowBad : 0) | (best != 0 ? kRowHasFinite : 0);
  }

  Shared& shared_;
  int vocab_;
  int num_parts_ = 1, part_ = 0, width_ = 0, first_ = 0, count_;
  const float* values_ = nullptr;  // of this part
  bool is_aligned_ = false;        // four values can be loaded at once
  bool has_started_ = false;
  int turn_ = 0;
  uint32_t mine_ = 0;
};

}  // namespace nanovllm::cuda::rows
