#pragma once

#include <prometheus/histogram.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm::server {

/// The metrics' data of a request while it runs.
struct RequestProgress {
  double arrival_time = 0;  ///< seconds on the steady clock
  int64_t num_prompt_tokens = 0;
  std::vector<double> token_times = {};  ///< when each choice got its newest token; 0: it has none
};

/// The numbers of GET /metrics, in Prometheus' text format and with vLLM's names and buckets. The
/// engine counts steps and tokens (EngineStats); this class counts requests and times, from the
/// requests' updates. A request with several choices counts once, but each of its answers has its
/// own finished_reason, first token and number of generated tokens. Used by the I/O thread only.
class Metrics {
 public:
  Metrics(std::string model_name, const EngineSetup& setup);
  void count(RequestProgress& progress, const RequestUpdate& update);
  std::string text(const EngineStats& stats) const;

 private:
  const std::string model_name_;
  const int64_t block_size_;
  const bool has_prefix_cache_;
  int64_t num_prompt_tokens_ = 0;
  std::map<std::string, int64_t, std::less<>> num_ended_;  // answers by finish_reason
  prometheus::Histogram first_token_, inter_token_, end_to_end_, queue_, prefill_, decode_,
      inference_, prompt_tokens_, generation_tokens_;
};

}  // namespace nanovllm::server
