#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "nanovllm/base/json.h"

namespace nanovllm::server {

/// A response of POST /v1/responses that a later request can continue.
struct StoredResponse {
  std::string id;
  std::string response;  ///< JSON, as the client got it
  std::string items;     ///< JSON: the list of the items of the request and of the answer
  size_t num_input_items = 0;
  std::shared_ptr<const StoredResponse>
      previous;  ///< the response that this one continues, or null
};

/// The responses that clients may refer to by id. The ids are random, so nobody else knows them.
/// The store keeps as many responses as it has room for, and the one that was used least recently
/// makes room. A conversation holds each of its items once: a response refers to the one before it,
/// which lives as long as it is needed. Any thread may use the store.
class ResponseStore {
 public:
  /// The most responses, and the most bytes of them and of what they refer to. A store for 0
  /// responses keeps nothing.
  struct Limits {
    size_t responses = 0;
    size_t bytes = 0;
  };
  explicit ResponseStore(const Limits& limits) : limits_(limits) {}

  bool is_on() const { return limits_.responses > 0; }
  /// Keeps a response unless it alone is too large.
  void add(std::shared_ptr<const StoredResponse> response);
  /// Returns a response; null if it does not exist or is no longer kept.
  std::shared_ptr<const StoredResponse> find(const std::string& id);
  /// Returns an item of an answer; null if its response is not kept.
  Json find_item(const std::string& id);
  /// Removes a response. Returns whether it existed.
  bool remove(const std::string& id);
  /// All items of a conversation, from its first response on. Throws UserError if there are more
  /// than one request could send.
  static Json items_of(const StoredResponse& last);
  /// The id of item `index` of an answer, "<kind>_...", which contains the response's id.
  static std::string item_id(std::string_view kind, std::string_view response_id, size_t index);

 private:
  using Order = std::list<std::shared_ptr<const StoredResponse>>;
  struct Held {
    size_t num_holders = 0;  ///< the list order_, and responses that continue it
    size_t bytes = 0;
  };
  void hold(const std::shared_ptr<const StoredResponse>& response);
  void let_go(const std::shared_ptr<const StoredResponse>& response);
  void forget(Order::iterator at);

  const Limits limits_;
  std::mutex mutex_;
  Order order_;  // the least recently used one first
  std::unordered_map<std::string, Order::iterator> by_id_;
  std::unordered_map<const StoredResponse*, Held> held_;  // kept responses and their predecessors
  size_t num_bytes_ = 0;
};

}  // namespace nanovllm::server
