#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace nanovllm {

/// Passes results on in the order of the prompts, each as soon as all earlier ones have arrived;
/// or, if `ordered` is false, at once.
class ResultOrder {
 public:
  ResultOrder(bool ordered, std::function<void(const std::string&)> sink)
      : ordered_(ordered), sink_(std::move(sink)) {}

  /// Each index from 0 on must be added once. An empty result takes its place in the order but is
  /// not passed on.
  void add(int64_t index, std::string result);
  /// Passes on all results that wait for earlier ones, which will not come.
  void flush();
  /// About the memory of the results that wait.
  size_t num_waiting_bytes() const { return num_waiting_bytes_; }

 private:
  void pass_on();  // passes on the first of waiting_

  bool ordered_;
  std::function<void(const std::string&)> sink_;
  std::map<int64_t, std::string> waiting_;
  size_t num_waiting_bytes_ = 0;
  int64_t next_ = 0;
};

}  // namespace nanovllm
