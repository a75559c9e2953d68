#include "nanovllm/ops/cuda/collectives/collectives.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/device/few_tokens.h"
#include "nanovllm/ops/cuda/device/libraries.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"

namespace nanovllm::cuda {

// -- NCCL

namespace {

// The part of nccl.h that is used here, so that a build needs no NCCL. The types and numbers are
// those of NCCL 2.14 and later.
using NcclComm = void*;
struct NcclId {
  char bytes[128];
};
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};
enum NcclResult : int { kNcclSuccess = 0, kNcclInProgress = 7 };

int nccl_type(DType dtype) {
  return dtype == DType::kF16 ? 6 : dtype == DType::kF32 ? 7 : dtype == DType::kBF16 ? 9 : 0;
}

}  // namespace

struct Nccl {
  SharedLibrary library{"libnccl.so.2", "nvidia/nccl/lib", "nvidia-nccl-cu13"};
  int (*get_id)(NcclId*) = library.find("ncclGetUniqueId");
  int (*init)(NcclComm*, int, NcclId, int, NcclConfig*) = library.find("ncclCommInitRankConfig");
  int (*reduce)(const void*, void*, size_t, int, int, NcclComm,
                cudaStream_t) = library.find("ncclAllReduce");
  int (*gather)(const void*, void*, size_t, int, NcclComm,
                cudaStream_t) = library.find("ncclAllGather");
  int (*status)(NcclComm, int*) = library.find("ncclCommGetAsyncError");
  int (*abort)(NcclComm) = library.find("ncclCommAbort");
  const char* (*error_string)(int) = library.find("ncclGetErrorString");

  Communicator& ranks;
  std::mutex mutex;         // guards `comm`, because another thread may call end()
  NcclComm comm = nullptr;  // null before connect() and after end()

  explicit Nccl(Communicator& all) : ranks(all) {
    // The thread that computes may be stuck in the driver, which waits for a kernel that waits for
    // a dead rank. So the thread that detects the death ends NCCL's kernels.
    ranks.set_on_abort([this] { end(); });
  }
  /// All ranks call this at the same time. If it throws, the destructor ends what NCCL's threads
  /// began.
  void connect() {
    const Rank rank = ranks.rank();
    std::vector<NcclId> ids(static_cast<size_t>(rank.world));
    NcclId mine = {};
    if (rank.index == 0) {
      const int result = get_id(&mine);
      check(result == kNcclSuccess, "NCCL: {}", error_string(result));
    }
    ranks.all_gather(&mine, sizeof mine, ids.data());
    NcclConfig config;
    run([&] { return init(&comm, rank.world, ids[0], rank.index, &config); });
  }
  ~Nccl() {
    ranks.set_on_abort({});
    end();
  }
  /// Ends all of NCCL's running kernels and calls. Later calls throw.
  void end() {
    const std::lock_guard lock(mutex);
    ended = true;
    if (comm != nullptr) abort(std::exchange(comm, nullptr));
  }
  /// Makes a call. It does not block inside NCCL: its state is polled until it is done or a rank
  /// has died.
  template <class Call>
  void run(const Call& call) {
    const auto result_of = [&](const auto& f) {
      const std::lock_guard lock(mutex);
      if (ended || ranks.aborted()) ranks.throw_aborted();
      return f();
    };
    int result = result_of(call);
    while (result == kNcclInProgress) {
      std::this_thread::yield();
      if (result_of([&] { return status(comm, &result); }) != kNcclSuccess) break;
    }
    if (result == kNcclSuccess) return;
    // NCCL's connection to a rank that was killed may fail before the thread that watches the ranks
    // knows that the process has ended. So wait a little: its end is the reason to report.
    using Clock = std::chrono::steady_clock;
    for (const auto start = Clock::now(); Clock::now() - start < std::chrono::seconds(2);) {
      if (ranks.aborted()) ranks.throw_aborted();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    check(false, "NCCL: {}", error_string(result));
  }

 private:
  bool ended = false;
};

// -- setting up

using SumNorm = CudaKernels::SumNorm;

Collectives::Collectives(Launch where, Communicator& ranks, std::optional<SumNorm> sum_norm)
    : where_(where), ranks_(ranks) {
  const Rank rank = ranks.rank();
  // Thread blocks wait for those of other ranks, so GPUs of different sizes need grids of one size.
  where_.num_sms = static_cast<int>(ranks.smallest(where.num_sms));
  require(rank.world <= kMaxPeers, "tensor_parallel_size is {}; at most {} are possible on GPUs",
          rank.world, kMaxPeers);
  peers_.rank = rank.index;
  peers_.world = rank.world;
  peers_.pairs_at = pairs_offset(rank.world);
  nccl_ = std::make_unique<Nccl>(ranks);
  nccl_->connect();
  try {
    connect_peers();
    if (has_peers_) measure();
  } catch (...) {
    drain();  // no kernel may use the buffers when they are freed
    throw;
  }
  if (sum_norm) sum_norms_.fill(*sum_norm);
}

Collectives::~Collectives() { drain(); }

void Collectives::wait(cudaEvent_t event) {
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (ranks_.aborted()) {
      nccl_->end();
      ranks_.throw_aborted();
    }
    if (state == cudaSuccess) break;
    if (state != cudaErrorNotReady) cuda_check(state, "step");
    std::this_thread::yield();
  }
  ranks_.progress().fetch_add(1, std::memory_order_relaxed);
}

void Collectives::drain() noexcept {
  // Our kernels poll the abort flag while they wait; NCCL's kernels are ended by ncclCommAbort.
  do {
    if (ranks_.aborted()) nccl_->end();
    std::this_thread::yield();
  } while (cudaStreamQuery(where_.stream) == cudaErrorNotReady);
}

void Collectives::connect_peers() {
  const auto own = static_cast<size_t>(peers_.rank);
  const auto allocate = [&](size_t bytes) {
    void* p = nullptr;
    cuda_check(cudaMalloc(&p, bytes), "exchange buffer");
    cuda_check(cudaMemsetAsync(p, 0, bytes, where_.stream), "exchange buffer");
    cuda_check(cudaStreamSynchronize(where_.stream),
               "exchange buffer");  // cleared before a peer writes
    return Buffer(p, [](void* memory) { cudaFree(memory); });
  };
  exchange_buffer_ = allocate(exchange_buffer_bytes(peers_.world));
  epoch_ = allocate(2 * sizeof(uint32_t));
  peers_.epoch = static_cast<uint32_t*>(epoch_.get());
  peers_.buffers[own] = static_cast<char*>(exchange_buffer_.get());

  auto* const flag = const_cast<std::atomic<uint32_t>*>(&ranks_.abort_flag());
  void* aborted = nullptr;
  bool ok = cudaHostRegister(flag, sizeof *flag, cudaHostRegisterMapped) == cudaSuccess;
  if (ok) abort_flag_ = {flag, [](void* p) { cudaHostUnregister(p); }};
  ok = ok && cudaHostGetDevicePointer(&aborted, flag, 0) == cudaSuccess;
  peers_.aborted = static_cast<const uint32_t*>(aborted);
  cudaIpcMemHandle_t mine = {};
  ok = ok && cudaIpcGetMemHandle(&mine, exchange_buffer_.get()) == cudaSuccess;
  std::vector<cudaIpcMemHandle_t> handles(static_cast<size_t>(peers_.world));
  ranks_.all_gather(&mine, sizeof mine, handles.data());
  int is_nvlink = 1;
  for (size_t r = 0; ok && r < handles.size(); ++r) {
    if (r == own) continue;
    int atomics = 0;
    cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, peers_.rank,
                              static_cast<int>(r));
    is_nvlink &= atomics;
    peers_.buffers[r] = open(handles[r]);
    ok = peers_.buffers[r] != nullptr;
  }
  cudaGetLastError();
  // Either all ranks use these kernels or none, because they wait for each other. A rank that gets
  // here has cleared its buffer.
  has_peers_ = ranks_.smallest(ok ? 1 : 0) == 1;
  has_nvlink_ = has_peers_ && ranks_.smallest(is_nvlink) == 1;
}

char* Collectives::open(const cudaIpcMemHandle_t& handle) {
  void* p = nullptr;
  if (cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
    return nullptr;
  opened_.emplace_back(p, [](void* q) { cudaIpcCloseMemHandle(q); });
  return static_cast<char*>(p);
}

// -- sums

bool Collectives::supports(AllReduce algorithm, size_t bytes) const {
  if (algorithm == AllReduce::kNccl) return true;
  if (bytes % 16 != 0 || !has_peers_) return false;
  return algorithm == AllReduce::kOneShot ? has_nvlink_ && bytes <= kLl128Bytes
                                          : bytes <= kTwoShotBytes;
}

void Collectives::all_reduce_by(AllReduce algorithm, Tensor x) {
  if (algorithm == AllReduce::kOneShot) return all_reduce_one_shot(where_, peers_, x);
  if (algorithm == AllReduce::kTwoShot) return all_reduce_two_shot(where_, peers_, x);
  nccl_->run([&] {
    return nccl_->reduce(x.data, x.data, static_cast<size_t>(x.size()), nccl_type(x.dtype), 0,
                         nccl_->comm, where_.stream);
  });
}

void Collectives::all_reduce(Tensor x) {
  const AllReduce fastest = all_reduces_[static_cast<size_t>(std::bit_width(x.bytes()))];
  const AllReduce other =
      supports(AllReduce::kTwoShot, x.bytes()) ? AllReduce::kTwoShot : AllReduce::kNccl;
  all_reduce_by(supports(fastest, x.bytes()) ? fastest : other, x);
}

PeerTensor Collectives::mapped(const Tensor& x) {
  const auto [at, is_new] = mapped_.try_emplace(x.data);
  if (is_new) {
    // A handle identifies an allocation. Tensors above kLl128Bytes begin where their allocation
    // does.
    cudaIpcMemHandle_t mine = {};
    cuda_check(cudaIpcGetMemHandle(&mine, x.data), "sharing memory");
    std::vector<cudaIpcMemHandle_t> handles(static_cast<size_t>(peers_.world));
    ranks_.all_gather(&mine, sizeof mine, handles.data());
    for (size_t r = 0; r < handles.size(); ++r) {
      const bool own = static_cast<int>(r) == peers_.rank;
      at->second[r] = own ? x.as<char>() : open(handles[r]);
      check(at->second[r] != nullptr, "memory of rank {} cannot be mapped: {}", r,
            cudaGetErrorString(cudaGetLastError()));
    }
  }
  return {x, at->second};
}

SumNorm Collectives::fused_sum_norm(const Tensor& x) const {
  const SumNorm fastest = sum_norms_[static_cast<size_t>(std::bit_width(x.bytes()))];
  // The GEMM kernel for few tokens includes the norm.
  if (x.shape[0] <= kFewTokens || !has_nvlink_) return SumNorm::kSeparate;
  const bool is_supported =
      fastest == SumNorm::kTwoShot ? supports_two_shot(x, peers_.world) : supports_one_shot(x);
  return is_supported ? fastest : SumNorm::kSeparate;
}

const Peers* Collectives::receivers(const Tensor& x) const {
  constexpr int64_t kMaxTokens = 8;  // the kernels that send have rarely more
  const bool suits = has_nvlink_ && x.shape[0] <= kMaxTokens && x.shape[1] % 4 == 0 &&
                     dtype_size(x.dtype) == 2 && 2 * x.bytes() <= kPairsBytes;
  return suits ? &peers_ : nullptr;
}

bool Collectives::sum_norm(Tensor out, Tensor x, const Norm& norm, Tensor part) {
  const SumNorm fused = fused_sum_norm(x);
  if (fused != SumNorm::kSeparate)
    sum_norm_ll128(where_, peers_, fused == SumNorm::kTwoShot, {out, x, part, norm});
  else if (shares_rows(x)) sum_norm_rows(where_, peers_, mapped(out), mapped(x), norm);
  else return false;
  return true;
}

void Collectives::measure() {
  constexpr int kRounds = 3, kRuns = 10;
  constexpr int64_t kSpinCycles = 400'000;
  constexpr size_t kLeast = size_t{16} << 10;
  constexpr std::array kAllReduces = {AllReduce::kNccl, AllReduce::kOneShot, AllReduce::kTwoShot};
  void* p = nullptr;
  cuda_check(cudaMalloc(&p, kTwoShotBytes), "measuring");
  const Buffer memory(p, [](void* x) { cudaFree(x); });
  cuda_check(cudaMemsetAsync(p, 0, kTwoShotBytes, where_.stream), "measuring");
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& event : events) cuda_check(cudaEventCreate(&event), "event");
  // Returns milliseconds: the least of some rounds on a rank, of which the most over the ranks is
  // taken, so that all ranks make the same choice.
  const auto time_of = [&](const auto& enqueue) {
    float least = INFINITY;
    for (int round = 0; round < kRounds; ++round) {
      enqueue();
      spin(where_, kSpinCycles);  // all launches are queued before the first one runs
      cuda_check(cudaEventRecord(events[0], where_.stream), "event");
      for (int i = 0; i < kRuns; ++i) enqueue();
      cuda_check(cudaEventRecord(events[1], where_.stream), "event");
      wait(events[1]);
      float time = 0;
      cuda_check(cudaEventElapsedTime(&time, events[0], events[1]), "event");
      least = std::min(least, time / kRuns);
    }
    std::vector<float> all(static_cast<size_t>(peers_.world));
    ranks_.all_gather(&least, sizeof least, all.data());
    return *std::ranges::max_element(all);
  };
  for (size_t bytes = kLeast; bytes <= kTwoShotBytes; bytes *= 2) {
    const auto bits = static_cast<size_t>(std::bit_width(bytes));
    const Tensor x(p, DType::kBF16, static_cast<int64_t>(bytes / 2));
    float least = INFINITY;
    for (const AllReduce algorithm : kAllReduces) {
      if (!supports(algorithm, bytes)) continue;
      const float time = time_of([&] { all_reduce_by(algorithm, x); });
      if (time < least) all_reduces_[bits] = algorithm;
      least = std::min(least, time);
    }
    // Measure the all-reduce with a norm too, in rows of a usual width.
    constexpr int64_t kHidden = 4096;
    const Tensor rows(p, DType::kBF16, std::max<int64_t>(x.size() / kHidden, 1), kHidden);
    if (!has_nvlink_ || !supports_one_shot(rows)) continue;
    const Norm norm = {Tensor(p, DType::kF32, kHidden), 1e-6f};  // zeros
    least = time_of([&] {
      all_reduce_by(all_reduces_[bits], rows);
      rms_norm(where_, rows, rows, norm);
    });
    const SumNormArgs args = {rows, rows, rows, norm};
    for (const SumNorm fused : {SumNorm::kOneShot, SumNorm::kTwoShot}) {
      const bool two_shot = fused == SumNorm::kTwoShot;
      if (two_shot && !supports_two_shot(rows, peers_.world)) continue;
      const float time = time_of([&] { sum_norm_ll128(where_, peers_, two_shot, args); });
      if (time < least) sum_norms_[bits] = fused;
      least = std::min(least, time);
    }
  }
  // Shorter messages use the algorithm of the shortest one that was measured.
  const auto first = static_cast<size_t>(std::bit_width(kLeast));
  std::fill_n(all_reduces_.begin(), first, all_reduces_[first]);
  std::fill_n(sum_norms_.begin(), first, sum_norms_[first]);
  for (cudaEvent_t event : events) cudaEventDestroy(event);
}

void Collectives::all_gather(void* all, const void* mine, size_t bytes) {
  if (has_nvlink_ && bytes <= kLl128Bytes)
    return all_gather_ll128(where_, peers_, all, mine, bytes);
  nccl_->run([&] { return nccl_->gather(mine, all, bytes, 0, nccl_->comm, where_.stream); });
}

int64_t Collectives::gather_scratch(int64_t num_rows, int64_t vocab_size) const {
  const int64_t most = (vocab_size / peers_.world / kShareUnit + 2) * kShareUnit;
  return (peers_.world + 1) * num_rows * most;
}

void Collectives::gather_logits(float* whole, Tensor logits, const int32_t* rows, int64_t num_rows,
                                int64_t vocab_size, float* scratch) {
  // All ranks send parts of one width.
  const int64_t width = gather_scratch(1, vocab_size) / (peers_.world + 1);
  float* const mine = scratch + peers_.world * num_rows * width;
  copy_columns(where_, mine, width, logits.as<const float>(), logits.shape[1], rows, num_rows,
               logits.shape[1]);
  all_gather(scratch, mine, static_cast<size_t>(num_rows * width) * sizeof(float));
  for (int r = 0; r < peers_.world; ++r) {
    const Range part = share(vocab_size, kShareUnit, {r, peers_.world});
    copy_columns(where_, whole + part.first, vocab_size, scratch + r * num_rows * width, width,
                 nullptr, num_rows, part.count);
  }
}

}  // namespace nanovllm::cuda
