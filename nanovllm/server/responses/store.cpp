#include "nanovllm/server/responses/store.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/server/http/http.h"
#include "nanovllm/server/openai/limits.h"

namespace nanovllm::server {

namespace {

constexpr std::string_view kPrefix = "resp_";
constexpr size_t kMostConversationText = HttpLimits().body_bytes;
constexpr size_t kIdDigits = 24;      // digits of new_id()
constexpr size_t kObjectBytes = 512;  // bytes that a response takes besides its texts

size_t bytes_of(const StoredResponse& response) {
  return kObjectBytes + response.response.size() + response.items.size();
}

}  // namespace

void ResponseStore::add(std::shared_ptr<const StoredResponse> response) {
  const std::scoped_lock lock(mutex_);
  if (!is_on() || bytes_of(*response) > limits_.bytes) return;
  hold(response);
  order_.push_back(std::move(response));
  by_id_[order_.back()->id] = std::prev(order_.end());
  while (held_.size() > limits_.responses || num_bytes_ > limits_.bytes) forget(order_.begin());
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id) {
  const std::scoped_lock lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return nullptr;
  order_.splice(order_.end(), order_, at->second);
  return *at->second;
}

Json ResponseStore::find_item(const std::string& id) {
  const size_t digits = id.find('_') + 1;
  const auto response = find(std::string(kPrefix) + id.substr(digits, kIdDigits));
  if (response == nullptr) return nullptr;
  for (Json& item : parse_json(response->items, "a stored response"))
    if (item.value("id", Json()) == id) return std::move(item);
  return nullptr;
}

std::string ResponseStore::item_id(std::string_view kind, std::string_view response_id,
                                   size_t index) {
  return fmt::format("{}_{}{:04x}", kind, response_id.substr(kPrefix.size()), index);
}

bool ResponseStore::remove(const std::string& id) {
  const std::scoped_lock lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end()) return false;
  forget(at->second);
  return true;
}

Json ResponseStore::items_of(const StoredResponse& last) {
  std::vector<const StoredResponse*> all;
  for (const StoredResponse* at = &last; at != nullptr; at = at->previous.get()) all.push_back(at);
  std::string text = "[";
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    const std::string_view list = (*at)->items;
    require(text.size() + list.size() <= kMostConversationText,
            "previous_response_id: the conversation has more than {} MiB of items",
            kMostConversationText >> 20);
    if (text.size() > 1) text += ',';
    text += list.substr(1, list.size() - 2);  // without the brackets
  }
  return parse_json(text + ']', "previous_response_id", kMaxConversationBytes);
}

void ResponseStore::hold(const std::shared_ptr<const StoredResponse>& response) {
  for (auto at = response; at != nullptr; at = at->previous) {
    Held& held = held_[at.get()];
    if (held.num_holders++ > 0) return;  // it already holds the response that it continues
    held.bytes = bytes_of(*at);
    num_bytes_ += held.bytes;
  }
}

void ResponseStore::let_go(const std::shared_ptr<const StoredResponse>& response) {
  for (auto at = response; at != nullptr; at = at->previous) {
    const auto held = held_.find(at.get());
    if (--held->second.num_holders > 0) return;
    num_bytes_ -= held->second.bytes;
    held_.erase(held);
  }
}

void ResponseStore::forget(Order::iterator at) {
  const std::shared_ptr<const StoredResponse> response = std::move(*at);
  by_id_.erase(response->id);
  order_.erase(at);
  let_go(response);
}

}  // namespace nanovllm::server
