#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/collectives/peers.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda_library.h"

// All-reduces and all-gathers over the GPUs of an engine's ranks, each of which is a process.
// Messages of up to 16 MiB use our own kernels, which write to the peers' memory (CUDA IPC); larger
// ones use NCCL. Read this file first, then exchange.cuh: the protocols; collectives.cu: all-reduce
// and all-gather; pairs.cuh and pairs.cu: all-reduces that a GEMM begins; sum_norm.cu and
// sum_norm_rows.cu: all-reduce with the norm after it in one kernel; collectives.cpp: set-up, NCCL,
// and the choice of the algorithm.
namespace nanovllm::cuda {

/// A tensor that every rank has, and the addresses of all of them in this process.
struct PeerTensor {
  Tensor tensor;
  std::array<char*, kMaxPeers> data = {};
};
/// The rows that a rank sums in two-shot kernels.
inline Range row_share(int64_t num_rows, Rank rank) { return share(num_rows, 1, rank); }

/// The largest messages of the LL128 kernels, and of the two-shot all-reduce with plain stores. The
/// exchange buffer has room for two messages of each kind, which exchanges use in turns. This is
/// safe: when a rank begins an exchange, all peers have told it, in the exchange before, that they
/// have finished the one before that.
inline constexpr size_t kLl128Bytes = size_t{4} << 20;
inline constexpr size_t kTwoShotBytes = size_t{16} << 20;
inline constexpr int kTwoShotBlocks = 128;
/// The value of Peers::pairs_at for this number of ranks.
size_t pairs_offset(int world);
size_t exchange_buffer_bytes(int world);

// -- launchers; tensors are contiguous

/// x becomes its sum over the ranks, one-shot by LL128: up to kLl128Bytes, over NVLink only.
void all_reduce_one_shot(Launch where, const Peers& peers, Tensor x);
/// x becomes its sum over the ranks, two-shot: fewer bytes, more latency. Up to kTwoShotBytes.
void all_reduce_two_shot(Launch where, const Peers& peers, Tensor x);
/// all [world, bytes] = each rank's mine [bytes], up to kLl128Bytes.
void all_gather_ll128(Launch where, const Peers& peers, void* all, const void* mine, size_t bytes);

/// These two kernels together are an all-reduce of a 16-bit x, over NVLink only. Rows are multiples
/// of 4 elements, with up to kPairsBytes / 4 in all. A GEMM may replace send_pairs() (pairs.cuh).
void send_pairs(Launch where, const Peers& peers, Tensor x);
void sum_pairs(Launch where, const Peers& peers, Tensor x);

/// residual += the sum of `part` over the ranks; out = rms_norm(residual), or residual if there is
/// no norm. All are [rows, hidden]; out may be the same tensor as part or, without a norm, as
/// residual.
struct SumNormArgs {
  Tensor out, residual, part;
  Norm norm;
};
/// Computes SumNormArgs by LL128. One-shot: every rank sums all rows. Two-shot: each rank sums its
/// row_share() and sends the result to all, which is fewer bytes; then only these rows of the
/// rank's residual are valid.
void sum_norm_ll128(Launch where, const Peers& peers, bool two_shot, const SumNormArgs& args);
bool supports_one_shot(const Tensor& x);
bool supports_two_shot(const Tensor& x, int world);
/// out = rms_norm(sum over the ranks of x), for more than kLl128Bytes; the row_share() of x becomes
/// the sum. The peers read x and write to out directly.
void sum_norm_rows(Launch where, const Peers& peers, const PeerTensor& out, const PeerTensor& x,
                   const Norm& norm);
bool supports_sum_norm_rows(const Tensor& x);

/// out [num_rows, width] = the first `width` columns of in's rows [num_rows], or of its first rows
/// where `rows` is null; float32.
void copy_columns(Launch where, float* out, int64_t out_stride, const float* in, int64_t in_stride,
                  const int32_t* rows, int64_t num_rows, int64_t width);

// -- for the backend

struct Nccl;

/// The collectives of one rank. All ranks enqueue the same calls in the same order.
class Collectives {
 public:
  /// All ranks construct theirs at the same time. Throws UserError if NCCL is missing.
  Collectives(Launch where, Communicator& ranks, std::optional<CudaKernels::SumNorm> sum_norm);
  ~Collectives();

  /// x, which is contiguous, becomes its sum over the ranks. Our kernels add in the order of the
  /// ranks.
  void all_reduce(Tensor x);
  /// Sums x over the ranks, and writes out = rms_norm(x) of the sum, in one kernel. Returns false
  /// without doing anything if two kernels are faster. If adds_residual(x), `part` is summed over
  /// the ranks instead and added to x.
  bool sum_norm(Tensor out, Tensor x, const Norm& norm, Tensor part);
  /// Whether sum_norm() adds the old residual x to the sum of the parts, so that the GEMM before it
  /// must not add it. Without a norm, sum_norm() then writes the sum to out.
  bool adds_residual(const Tensor& x) const {
    return fused_sum_norm(x) != CudaKernels::SumNorm::kSeparate;
  }
  /// Whether only the row_share() of x is valid on a rank after sum_norm(). Unless adds_residual(),
  /// the GEMM of each rank then adds the old residual to these rows. If neither function returns
  /// true, the GEMM of rank 0 adds it to all rows.
  bool shares_rows(const Tensor& x) const {
    return fused_sum_norm(x) == CudaKernels::SumNorm::kTwoShot ||
           (has_nvlink_ && supports_sum_norm_rows(x));
  }
  /// The ranks to which the GEMM that computes x sends it, if finish_sum() is to complete the
  /// all-reduce of x; otherwise null. If the GEMM cannot send, it writes x, and send() follows it.
  const Peers* receivers(const Tensor& x) const;
  void send(Tensor x) { send_pairs(where_, peers_, x); }
  void finish_sum(Tensor x) { sum_pairs(where_, peers_, x); }
  /// all [world, bytes] = each rank's mine [bytes], a multiple of 16.
  void all_gather(void* all, const void* mine, size_t bytes);
  /// Gathers rows [num_rows, vocab_size] float32 into `whole` from each rank's columns of logits
  /// [R, n]. `rows`, in device memory, are the numbers of the rows; null: the first ones. `scratch`
  /// holds gather_scratch() floats.
  void gather_logits(float* whole, Tensor logits, const int32_t* rows, int64_t num_rows,
                     int64_t vocab_size, float* scratch);
  int64_t gather_scratch(int64_t num_rows, int64_t vocab_size) const;

  /// Waits for an event of the stream. Throws EngineDead as soon as a rank has died; after that
  /// nothing may be enqueued.
  void wait(cudaEvent_t event);
  /// Waits until the stream is empty. If a rank has died, kernels that wait for it end first.
  void drain() noexcept;
  Communicator& ranks() const { return ranks_; }

 private:
  /// The algorithms of an all-reduce. The fastest for each size is found by measurement at start.
  enum class AllReduce : uint8_t { kNccl, kOneShot, kTwoShot };
  bool supports(AllReduce algorithm, size_t bytes) const;
  /// Maps memory of a peer into this process for the lifetime of this object.
  char* open(const cudaIpcMemHandle_t& handle);
  void all_reduce_by(AllReduce algorithm, Tensor x);
  void connect_peers();
  /// The peers' tensors that correspond to x. The first call for x.data is a collective; that
  /// memory must not be freed before this object.
  PeerTensor mapped(const Tensor& x);
  void measure();
  /// Which kernel of sum_norm.cu sum_norm() uses for x; kSeparate: none.
  CudaKernels::SumNorm fused_sum_norm(const Tensor& x) const;

  Launch where_;
  Communicator& ranks_;
  std::unique_ptr<Nccl> nccl_;
  Peers peers_;
  bool has_peers_ = false;   // all ranks reach each other's memory
  bool has_nvlink_ = false;  // and do so over NVLink, which LL128 needs
  Buffer abort_flag_;        // registered with CUDA
  Buffer exchange_buffer_, epoch_;
  std::vector<Buffer> opened_;  // memory of peers
  // The fastest algorithms, by the number of bits of a message's size in bytes.
  std::array<AllReduce, 64> all_reduces_ = {};
  std::array<CudaKernels::SumNorm, 64> sum_norms_ = {};
  std::map<void*, std::array<char*, kMaxPeers>> mapped_;  // memory of all ranks
};

}  // namespace nanovllm::cuda
