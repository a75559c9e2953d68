#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda_library.h"

// Sums and exchanges over the GPUs of an engine's ranks, a process each. Short messages are written
// straight into the peers' memory (CUDA IPC), long ones go through NCCL.
namespace nanovllm::cuda {

inline constexpr int kMaxPeers = 8;

/// How kernels see the ranks: each one's exchange buffer, mapped here.
struct Peers {
  std::array<char*, kMaxPeers> buffers = {};
  int rank = 0, world = 1;
  const uint32_t* aborted = nullptr;  ///< in host memory; not 0: waiting has no use any more
  /// [0] counts this rank's exchanges, which are the same on all; [1]: blocks that are done.
  uint32_t* epoch = nullptr;
};

/// A tensor that every rank has, and where each one's lies as mapped here.
struct PeerTensor {
  Tensor tensor;
  std::array<char*, kMaxPeers> data = {};
};
/// The rows that a rank sums.
inline Range row_share(int64_t num_rows, Rank rank) { return share(num_rows, 1, rank); }

/// Sizes of the exchange buffer's parts. Each part is there twice, for the exchange under way and
/// the next: whoever is two ahead has heard from everybody about the one between.
inline constexpr size_t kLineBytes = size_t{4} << 20;     ///< most that goes in lines
inline constexpr size_t kSlicedBytes = size_t{16} << 20;  ///< most that goes in slices
inline constexpr int kSlicedBlocks = 128;
size_t exchange_buffer_bytes(int world);

// -- kernels: x dense, its bytes a multiple of 16

/// Every rank writes its x to all others: one hop. Up to kLineBytes, over NVLink alone.
void all_reduce_lines(Launch where, const Peers& peers, Tensor x);
/// The residual becomes its sum with all ranks' parts, out = rms_norm(residual), or residual
/// without a norm; [rows, hidden] all. out may be part, without a norm residual.
struct SumNormArgs {
  Tensor out, residual, part;
  Norm norm;
};
/// Every rank adds up all rows, in lines. Where serves_one_hop().
void sum_norm_one_hop(Launch where, const Peers& peers, const SumNormArgs& args);
bool serves_one_hop(const Tensor& x);
/// Each rank adds up its row_share() and sends it to all: fewer bytes. The residual has a rank's
/// own rows alone. Where serves_two_hops().
void sum_norm_two_hops(Launch where, const Peers& peers, const SumNormArgs& args);
bool serves_two_hops(const Tensor& x, int world);
/// The same of many rows, without a residual: a rank's rows of x become their sum. The peers read x
/// where it lies. Where serves_sum_norm_rows(), more than kLineBytes.
void sum_norm_rows(Launch where, const Peers& peers, const PeerTensor& out, const PeerTensor& x,
                   const Norm& norm);
bool serves_sum_norm_rows(const Tensor& x);
/// all_reduce_lines() behind fences. Up to kSlicedBytes / world.
void all_reduce_whole(Launch where, const Peers& peers, Tensor x);
/// Each rank sums a slice and hands the sum out: two hops, fewer bytes. Up to kSlicedBytes.
void all_reduce_slices(Launch where, const Peers& peers, Tensor x);
/// all [world, bytes] = each rank's mine [bytes], up to kLineBytes.
void all_gather_lines(Launch where, const Peers& peers, void* all, const void* mine, size_t bytes);
/// out [rows, ...] = in's first `width` columns of these rows (all of them in order where `rows` is
/// null), float32.
void copy_columns(Launch where, float* out, int64_t out_stride, const float* in, int64_t in_stride,
                  const int32_t* rows, int64_t num_rows, int64_t width);

// -- the ranks

struct Nccl;

/// All ranks enqueue the same calls in the same order.
class Collectives {
 public:
  /// A collective itself. Throws UserError where NCCL is missing.
  Collectives(Launch where, Communicator& ranks, std::optional<CudaKernels::SumNorm> sum_norm);
  ~Collectives();

  /// x, dense, becomes its sum over the ranks, added in their order or NCCL's.
  void all_reduce(Tensor x);
  /// The same, and out = rms_norm(x) of the sum, in one kernel; false, and nothing is done, where
  /// two are faster. `part`: what to add to x, where adds_late(x).
  bool sum_norm(Tensor out, Tensor x, const Norm& norm, Tensor part);
  /// Whether the sum adds the old residual x, not the product before it; without a norm sum_norm()
  /// then gives out the sums.
  bool adds_late(const Tensor& x) const { return late_way(x) != CudaKernels::SumNorm::kApart; }
  /// Whether behind sum_norm() a rank has its row_share() of x alone. Where not adds_late(), a
  /// rank's product adds the old residual to these rows; where neither, rank 0's adds it to all.
  bool shares_rows(const Tensor& x) const {
    return late_way(x) == CudaKernels::SumNorm::kTwoHops || (has_lines_ && serves_sum_norm_rows(x));
  }
  /// all [world, bytes] = each rank's mine [bytes], a multiple of 16.
  void all_gather(void* all, const void* mine, size_t bytes);
  /// Whole rows [num_rows, vocab_size] float32 into `joined`, out of each rank's columns of logits
  /// [R, n]. `rows`: which of them, in device memory; null: all from the first on. `scratch` holds
  /// join_scratch() floats.
  void join_rows(float* joined, Tensor logits, const int32_t* rows, int64_t num_rows,
                 int64_t vocab_size, float* scratch);
  int64_t join_scratch(int64_t num_rows, int64_t vocab_size) const;

  /// Waits for an event of the stream. Throws EngineDead as soon as some rank is dead; then nothing
  /// may be enqueued any more.
  void wait(cudaEvent_t event);
  /// Waits until the stream is empty; where some rank is dead, what waits for it ends first.
  void drain() noexcept;
  Communicator& ranks() const { return ranks_; }

 private:
  /// Ways to sum, of which the fastest for each size is found by measurement.
  enum class Way : uint8_t { kNccl, kLines, kWhole, kSlices };
  bool serves(Way way, size_t bytes) const;
  /// Memory of a peer, mapped here for as long as this lives.
  char* open(const cudaIpcMemHandle_t& handle);
  void reduce(Way way, Tensor x);
  void connect_peers();
  /// A collective where it is new. The memory stays where it is as long as these do.
  PeerTensor mapped(const Tensor& x);
  void measure();
  /// How a residual's sum is added late; kApart: it is not.
  CudaKernels::SumNorm late_way(const Tensor& x) const;

  Launch where_;
  Communicator& ranks_;
  std::unique_ptr<Nccl> nccl_;
  Peers peers_;
  bool has_peers_ = false, has_lines_ = false;
  Buffer abort_flag_;             // registered with CUDA
  std::array<Buffer, 2> memory_;  // the exchange buffer, the epoch
  std::vector<Buffer> opened_;    // memory of peers
  // By the bits of a message's size in bytes.
  std::array<Way, 64> ways_ = {};
  std::array<CudaKernels::SumNorm, 64> norm_ways_ = {};
  std::map<void*, std::array<char*, kMaxPeers>> mapped_;  // memory of all ranks
};

}  // namespace nanovllm::cuda
