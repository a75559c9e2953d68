#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/backend/parts/device.h"

namespace nanovllm::cuda {

/// How the attention of a step is computed over one cache group: which kernels, and how they divide
/// the sequences. All layers of the group use it. It depends on the bounds that the host knows; the
/// first kernel of the step derives the rest (DecodePlan) from the lengths themselves.
class AttentionPlan {
 public:
  explicit AttentionPlan(Device& device) : device_(device) {}

  /// Plans the step, and makes room for what its attention needs.
  void plan(const Step& step, const KvCache& kv);
  /// Whether run() can compute it; otherwise general_attention() has to.
  bool supports(const AttentionArgs& args, const KvCache& kv) const;
  void run(const AttentionParams& params, DType dtype, const KvCache& kv, bool prefetch_keys);

  /// Cluster size in thread blocks for rope_decode_attention(); 0: it is not used.
  int decode_cluster() const { return decode_cluster_; }
  bool has_prefill() const { return has_prefill_; }
  const DecodePlan& decode() const { return decode_; }
  bool has_equal_tiles() const { return has_equal_tiles_; }

 private:
  /// Neighbouring sequences whose 16-bit keys are in dequantized_ at the same time, if the cache is
  /// of e4m3 and prefill attention needs such copies.
  struct PrefillGroup {
    int first, num_seqs, num_tokens, blocks_per_seq;
  };
  /// Allocates what does not depend on the step.
  void reserve(const Step& step, const KvCache& kv);
  /// Finds what ranks must know alike to choose decode attention alike (order.alike): NCCL requires
  /// that all ranks or none launch a collective from a graph.
  void agree(const KvCache& kv);
  /// Fills prefill_groups_, and makes room for the copies of the largest group.
  void group_prefills(const Step& step, const KvCache& kv);

  Device& device_;
  Growing plan_memory_{.in_graphs = true}, partial_{.in_graphs = true},
      counters_{.in_graphs = true}, prefill_counters_, prefill_partial_, dequantized_,
      dequantized_tables_;
  DecodePlan decode_ = {};
  int most_kv_heads_ = 0;   // the largest number of KV heads of a rank; 0: not known yet
  int decode_cluster_ = 0;  // see decode_cluster()
  bool has_prefill_ = false, has_decode_ = false;
  bool has_equal_tiles_ = false;  // as in DecodeSplits::of()
  std::vector<PrefillLengths> prefill_lengths_;
  std::vector<PrefillGroup> prefill_groups_;
};

}  // namespace nanovllm::cuda
