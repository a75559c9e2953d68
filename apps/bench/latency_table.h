#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nanovllm {

/// The median, the least and the most of several measurements.
struct Spread {
  double median = 0, least = 0, most = 0;
  static Spread of(std::vector<double> values);
};

/// The measurements of `bench latency` for one batch, with the batch's size and the lengths of its
/// prompts and answers in tokens.
struct LatencyResult {
  int64_t batch_size = 1, input_len = 0, output_len = 0;
  Spread prefill_s;           ///< until the last sequence has its first token
  Spread decode_ms_per_step;  ///< each later step; 0 if there is none
  Spread total_s;
};

/// Writes results in a format: table (in 80 columns), csv, markdown or json. latency_header() is
/// the text before the first line, which may be empty.
std::string latency_header(const std::string& format);
std::string latency_line(const std::string& format, const LatencyResult& result);

}  // namespace nanovllm
