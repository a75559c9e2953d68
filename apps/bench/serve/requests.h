#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace nanovllm {

/// The requests that `bench serve` sends, and their times.
struct ServeTraffic {
  std::string dataset;           ///< a prompts file; empty: nano-vLLM's 256 sequences
  std::string trace;             ///< a trace of a service, instead of a dataset
  double speed = 1;              ///< how many times faster than recorded the trace runs
  int64_t random_input_len = 0;  ///< random prompts of this length instead of a dataset; 0: none
  int64_t random_output_len = 128;
  int64_t num_prompts = 0;     ///< 0: all of the file, or 1,000 random ones
  int64_t vocab_size = 10001;  ///< token ids of random prompts and of the 256 sequences are smaller
  double request_rate = 0;     ///< requests a second at random times; 0: all at once
  uint64_t seed = 0;
};

/// One request, ready to be sent.
struct ServeRequest {
  std::string path, body;
};

/// The requests of a run. Bodies are made when they are needed, because all prompts of a trace
/// together would fill the memory.
class ServeRequests {
 public:
  virtual ~ServeRequests() = default;
  size_t size() const { return arrivals_.size(); }
  /// When request i is sent, in seconds after the start; never before request i - 1.
  double arrival(size_t i) const { return arrivals_[i]; }
  virtual ServeRequest request(size_t i) const = 0;
  /// How many requests did not fit into the model's context and were cut.
  int64_t num_cut() const { return num_cut_; }

  /// Makes the requests. `model` is the model's name in them, and `max_model_len` the longest
  /// context of the server's model (0: unknown). Throws UserError.
  static std::unique_ptr<ServeRequests> make(const ServeTraffic& traffic, const std::string& model,
                                             int64_t max_model_len);

 protected:
  std::vector<double> arrivals_;
  int64_t num_cut_ = 0;
};

}  // namespace nanovllm
