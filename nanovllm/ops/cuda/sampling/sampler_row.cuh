#pragma once

#include "nanovllm/ops/cuda/device/hopper.cuh"
#include "nanovllm/ops/cuda/sampling/sampler.cuh"

// A row of logits and the passes over it. On Hopper the thread blocks of a cluster hold the row in
// their shared memory, so that it is read from memory once, however many passes a filter needs.
// Elsewhere, and if a row is too long for that, one thread block passes over the row in global
// memory.
namespace nanovllm::cuda::rows {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;
inline constexpr int kMaxCluster = 8;
/// How many tokens a Row can list.
inline constexpr int kMaxListed = 2048;

/// The shared memory of a thread block, besides its part of the row.
struct alignas(16) Shared {
  unsigned long long listed[kMaxListed];  // token_key() of a value and an id
  // The contributions of each warp and each thread block to a reduction.
  ulonglong2 warps[kWarps];
  ulonglong2 parts[2][kMaxCluster];
  // The ordered() of the largest logit of each warp's tokens, in this thread block and in all.
  alignas(16) uint32_t own_maxima[kWarps];
  alignas(16) uint32_t maxima[kMaxCluster * kWarps];
  // mbarriers that wait for the copy of the row, `maxima`, `parts` and `listed`
  unsigned long long copied, scanned, reduced[2], is_listed;
  int num_listed;
  uint32_t bound;
  uint32_t highest;  // the thread block's best approximate score, as ordered()
};

/// The larger number; NaN if one is NaN.
__device__ inline float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ inline float largest_of(const float (&x)[4]) {
  return fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
}

/// The largest number of a warp, by two instructions instead of five exchanges.
__device__ inline unsigned long long warp_largest(unsigned long long x) {
  const auto high = static_cast<uint32_t>(x >> 32);
  const uint32_t highest = __reduce_max_sync(kAllLanes, high);
  const uint32_t low = high == highest ? static_cast<uint32_t>(x) : 0;
  return static_cast<unsigned long long>(highest) << 32 | __reduce_max_sync(kAllLanes, low);
}

/// Sorts shared.listed[0, count), the largest first. No number occurs twice.
__device__ inline void sort(Shared& shared, int count) {
  if (count <= kThreads / 4) {
    // Four threads count how many numbers are larger than theirs, which is its place.
    const int i = static_cast<int>(threadIdx.x) / 4;
    const unsigned long long mine = i < count ? shared.listed[i] : 0;
    int place = 0;
    for (int j = threadIdx.x % 4; j < count; j += 4) place += shared.listed[j] > mine ? 1 : 0;
    place = quad_reduce(place, Sum());
    __syncthreads();
    if (threadIdx.x % 4 == 0 && i < count) shared.listed[place] = mine;
    __syncthreads();
    return;
  }
  // A bitonic sort over the next power of two.
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

/// A row of logits [vocab]. After its construction, call read(), wait() and scan() once each. All
/// threads of the cluster, or of the thread block without clusters, call each function together,
/// except where its comment says otherwise, and get the same results.
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
      if (threadIdx.x == 0) {
        for (unsigned long long* barrier : {&shared.copied, &shared.scanned, &shared.reduced[0],
                                            &shared.reduced[1], &shared.is_listed})
          hopper::barrier_init(shared_address(barrier), 1);
        hopper::fence_barrier_init();
        hopper::cluster_fence();
      }
      __syncwarp();
      hopper::cluster_arrive_relaxed();  // wait() waits until all thread blocks have started
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

  /// Takes the row `logits` [vocab] in global memory. If `copy` is given, as a cluster needs, this
  /// thread block's part is copied there, padded to a multiple of four floats; wait() waits for it.
  __device__ void read(const float* logits, float* copy) {
    logits += first_;
    is_aligned_ = vocab_ % 4 == 0;
    values_ = kClustered || copy != nullptr ? copy : logits;
    if constexpr (kClustered) {
      if (is_aligned_) {
        if (threadIdx.x != 0) return;
        const auto bytes = static_cast<uint32_t>(count_ * sizeof(float));
        const uint32_t barrier = shared_address(&shared_.copied);
        hopper::barrier_arrive_expect(barrier, bytes);
        if (bytes > 0) hopper::bulk_copy(shared_address(copy), logits, bytes, barrier);
        return;
      }
    }
    if (copy == nullptr) return;
#pragma unroll 4
    for (int i = threadIdx.x; i < count_; i += kThreads) copy[i] = logits[i];
    if (kClustered && threadIdx.x < (-count_ & 3)) copy[count_ + threadIdx.x] = -INFINITY;
  }
  __device__ void wait() {
    if constexpr (kClustered) {
      __syncwarp();  // one thread of the first warp may have started the copy
      hopper::cluster_wait();
      if (is_aligned_) return hopper::barrier_wait(shared_address(&shared_.copied), 0);
    }
    __syncthreads();
  }
  /// The largest logit; NaN or infinity if the row has one, or if any thread says that it `is_bad`.
  __device__ float scan(bool is_bad) {
    float highest = is_bad ? NAN : -INFINITY;
    for_each_four([&](int, const float(&x)[4]) {
      highest = max_or_nan(highest, max_or_nan(max_or_nan(x[0], x[1]), max_or_nan(x[2], x[3])));
    });
    mine_ = ordered(highest);  // NaN is above all numbers
    const uint32_t of_warp = __reduce_max_sync(kAllLanes, mine_);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) (kClustered ? shared_.own_maxima : shared_.maxima)[warp] = of_warp;
    __syncthreads();
    if constexpr (kClustered) {
      const uint32_t barrier = shared_address(&shared_.scanned);
      if (warp == 0) {
        if (lane == 0)
          hopper::barrier_arrive_expect(barrier, num_parts_ * sizeof(of_warp) * kWarps);
        constexpr int kEach = 4;  // numbers that a lane sends
        const int at = lane % (kWarps / kEach) * kEach, rank = lane / (kWarps / kEach);
        if (rank < num_parts_)
          hopper::remote_store_async(
              reinterpret_cast<ulonglong2*>(shared_.maxima + part_ * kWarps + at), rank,
              *reinterpret_cast<const ulonglong2*>(shared_.own_maxima + at), barrier);
      }
      hopper::barrier_wait(barrier, 0);
    }
    uint4 m = {};
    static_assert(kMaxCluster * kWarps == 4 * 32);
    if (lane * 4 < num_parts_ * kWarps) m = reinterpret_cast<const uint4*>(shared_.maxima)[lane];
    return from_ordered(__reduce_max_sync(kAllLanes, max(max(m.x, m.y), max(m.z, m.w))));
  }
  /// The token_key() of the first token with this logit.
  __device__ unsigned long long first_with(float logit) {
    int32_t first = 0x7fffffff;
    for_each([&](int id, float x) {
      if (x == logit) first = min(first, id);
    });
    return largest(first < vocab_ ? token_key(logit, first) : 0);
  }

  /// Calls body(id, x) for the tokens of this thread, four neighbours x[4] at a time: id is a
  /// multiple of four, and x is -infinity beyond the vocabulary.
  template <class Body>
  __device__ void for_each_four(Body body) const {
    for (int i = threadIdx.x * 4; i < count_; i += kThreads * 4) {
      const Vec<float, 4> v = fetch(i);
      body(first_ + i, v.x);
    }
  }
  /// Calls body(id, x) for the four tokens from `id` on, a multiple of four, in the thread that has
  /// them.
  template <class Body>
  __device__ void for_four(int id, Body body) const {
    const int i = id - first_;
    if (i < 0 || i >= count_ || i / 4 % kThreads != static_cast<int>(threadIdx.x)) return;
    const Vec<float, 4> v = fetch(i);
    body(id, v.x);
  }
  template <class Body>
  __device__ void for_each(Body body) const {
    for_each_four([&](int id, const float(&x)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(id + i, x[i]);
    });
  }
  /// The value of a token in this thread block's part, for changes of the copy.
  __device__ float& at(float* copy, int id) const { return copy[id - first_]; }
  __device__ bool has(int id) const { return first_ <= id && id < first_ + count_; }

  /// Combines v, which is 16 bytes, of all threads, and returns the result in all of them.
  /// combine(v) gives every lane of a warp the result of the warp; zeros must not change it.
  template <class T, class Combine>
  __device__ T reduce(T v, Combine combine) {
    static_assert(sizeof(T) == sizeof(ulonglong2));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto among = [&](const ulonglong2* list, int count) {
      return combine(bits_as<T>(lane < count ? list[lane] : ulonglong2{}));
    };
    v = combine(v);
    if (lane == 0) shared_.warps[warp] = bits_as<ulonglong2>(v);
    __syncthreads();
    if constexpr (kClustered) {
      // Two barriers take turns. A thread block uses this one again two reductions later. By then
      // it has received the values of the reduction in between from all thread blocks, so all of
      // them have read the values of this reduction.
      const int turn = num_reductions_ % 2, parity = num_reductions_ / 2 % 2;
      ++num_reductions_;
      const uint32_t barrier = shared_address(&shared_.reduced[turn]);
      if (warp == 0) {
        v = among(shared_.warps, kWarps);
        if (lane == 0) hopper::barrier_arrive_expect(barrier, num_parts_ * sizeof(v));
        if (lane < num_parts_)
          hopper::remote_store_async(&shared_.parts[turn][part_], lane, bits_as<ulonglong2>(v),
                                     barrier);
      }
      hopper::barrier_wait(barrier, parity);
      return among(shared_.parts[turn], num_parts_);
    } else {
      v = among(shared_.warps, kWarps);
      __syncthreads();
      return v;
    }
  }
  __device__ ulonglong2 totals(unsigned long long x, unsigned long long y) {
    return reduce(ulonglong2{x, y}, [](ulonglong2 v) {
      return ulonglong2{warp_sum(v.x), warp_sum(v.y)};
    });
  }
  __device__ unsigned long long total(unsigned long long x) {
    return reduce(ulonglong2{x, 0}, [](ulonglong2 v) { return ulonglong2{warp_sum(v.x), 0}; }).x;
  }
  __device__ unsigned long long largest(unsigned long long x) {
    return reduce(ulonglong2{x, 0},
                  [](ulonglong2 v) {
                    return ulonglong2{warp_largest(v.x), 0};
                  })
        .x;
  }

  /// A logit that at least k tokens reach, not much less than the k-th largest; -infinity if none
  /// is known.
  __device__ float bound_of_best(int k) {
    const int num_maxima = num_parts_ * kWarps;
    // The largest logits of groups of tokens are logits of different tokens. So at least k tokens
    // reach the k-th largest of them.
    if (k <= num_maxima) {
      const int i = static_cast<int>(threadIdx.x) / 4;
      if (i < num_maxima) {  // four threads compare one of them with all
        const uint32_t mine = shared_.maxima[i];
        int above = 0, same = 0;
        const auto compare = [&](uint32_t other) {
          above += other > mine ? 1 : 0;
          same += other == mine ? 1 : 0;
        };
        for (int j = threadIdx.x % 4; j < num_maxima / 4; j += 4) {
          const uint4 others = reinterpret_cast<const uint4*>(shared_.maxima)[j];
          compare(others.x), compare(others.y), compare(others.z), compare(others.w);
        }
        above = quad_reduce(above, Sum());
        same = quad_reduce(same, Sum());
        if (above < k && k <= above + same) shared_.bound = mine;
      }
      __syncthreads();
      return from_ordered(shared_.bound);
    }
    // For a larger k the groups of tokens are those of the threads: at least k tokens reach the
    // (k / parts)-th largest of each part, which is found bit by bit.
    const int each = (k + num_parts_ - 1) / num_parts_;
    if (each > kThreads) return -INFINITY;
    uint32_t bound = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit > 0; bit /= 2)
      if (__syncthreads_count(mine_ >= (bound | bit)) >= each) bound |= bit;
    return from_ordered(~static_cast<uint32_t>(largest(~bound)));
  }

  /// Lists the token_key() of the tokens whose value(logit) is at least `bound`, sorted, the best
  /// first, in shared.listed of the first part. Returns their number; if it is above kMaxListed,
  /// the list is useless. It can be called once.
  template <class Value>
  __device__ int list(float bound, Value value) {
    uint32_t count = 0;
    const uint32_t barrier = shared_address(&shared_.is_listed);
    for_each_four([&](int id, const float(&x)[4]) {
      if (!(value(largest_of(x)) >= bound)) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float v = value(x[i]);
        if (!(v >= bound) || id + i >= vocab_) continue;
        ++count;
        const unsigned long long key = token_key(v, id + i);
        if constexpr (kClustered) {
          const int at = hopper::remote_add(&shared_.num_listed, 0, 1);
          if (at < kMaxListed) hopper::remote_store_async(shared_.listed + at, 0, key, barrier);
        } else {
          const int at = atomicAdd(&shared_.num_listed, 1);
          if (at < kMaxListed) shared_.listed[at] = key;
        }
      }
    });
    const auto all = static_cast<int>(reduce(uint4{count, 0, 0, 0}, [](uint4 v) {
                                        return uint4{__reduce_add_sync(kAllLanes, v.x), 0, 0, 0};
                                      }).x);
    if (!is_first_part()) return all;
    if constexpr (kClustered) {
      if (threadIdx.x == 0)
        hopper::barrier_arrive_expect(barrier, min(all, kMaxListed) * sizeof(shared_.listed[0]));
      hopper::barrier_wait(barrier, 0);
    }
    if (all <= kMaxListed) sort(shared_, all);
    return all;
  }

 private:
  __device__ Vec<float, 4> fetch(int i) const {
    if constexpr (!kClustered) {
      if (!is_aligned_) {
        Vec<float, 4> v;
#pragma unroll
        for (int j = 0; j < 4; ++j) v.x[j] = i + j < count_ ? values_[i + j] : -INFINITY;
        return v;
      }
    }
    return load<4>(values_ + i);
  }

  Shared& shared_;
  int vocab_;
  int num_parts_ = 1, part_ = 0, width_ = 0, first_ = 0, count_;
  const float* values_ = nullptr;  // the logits of this part
  bool is_aligned_ = false;        // rows start at multiples of 16 bytes
  int num_reductions_ = 0;
  uint32_t mine_ = 0;  // the ordered() of the largest logit of this thread's tokens
};

}  // namespace nanovllm::cuda::rows
