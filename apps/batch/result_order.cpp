#include "apps/batch/result_order.h"

namespace nanovllm {

namespace {

constexpr size_t kEntryBytes = 100;  // bytes of a node of the map

}  // namespace

void ResultOrder::add(int64_t index, std::string result) {
  if (!ordered_) {
    if (!result.empty()) sink_(result);
    return;
  }
  num_waiting_bytes_ += kEntryBytes + result.size();
  waiting_.emplace(index, std::move(result));
  for (; !waiting_.empty() && waiting_.begin()->first == next_; ++next_) pass_on();
}

void ResultOrder::flush() {
  while (!waiting_.empty()) pass_on();
}

void ResultOrder::pass_on() {
  const std::string result = std::move(waiting_.begin()->second);
  waiting_.erase(waiting_.begin());  // before the sink, which may throw and must get it only once
  num_waiting_bytes_ -= kEntryBytes + result.size();
  if (!result.empty()) sink_(result);
}

}  // namespace nanovllm
