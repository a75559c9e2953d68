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
  std::string items;     ///< JSON: the list of the request's items and those of the answer
  size_t num_input_items = 0;
  std::shared_ptr<const StoredResponse> previous;  ///< that this one continues; null: none
};

/// The responses that clients may refer to by id. The ids are random, so nobody else knows them. As
/// many as there is room for are kept, and the one that was used least recently makes room. A
/// conversation holds each of its items once: a response refers to the one before it, which lives
/// as long as it is needed. Any thread may use it.
class ResponseStore {
 public:
  /// Of the responses and what they refer to. A store for none keeps nothing.
  struct Limits {
    size_t responses = 0;
    size_t bytes = 0;
  };
  explicit ResponseStore(const Limits& limits) : limits_(limits) {}

  bool is_on() const { return limits_.responses > 0; }
  /// Keeps a response unless it alone is too large.
  void add(std::shared_ptr<const StoredResponse> response);
  /// Null if there is no such response, or no longer.
  std::shared_ptr<const StoredResponse> find(const std::string& id);
  /// The item of an answer; null if its response is not kept.
  Json find_item(const std::string& id);
  /// Returns whether there was one.
  bool remove(const std::string& id);
  /// All items of a conversation, from its first response on. Throws UserError if they are more
  /// than one request could send.
  static Json items_of(const StoredResponse& last);
  /// The id of item `index` of an answer, "<kind>_...", in which that of the response can be found.
  static std::string item_id(std::string_view kind, std::string_view response_id, size_t index);

 private:
  using Order = std::list<std::shared_ptr<const StoredResponse>>;
  struct Held {
    size_t num_holders = 0;  ///< the list below, and responses that continue it
    size_t bytes = 0;
  };
  void hold(const std::shared_ptr<const StoredResponse>& response);
  void let_go(const std::shared_ptr<const StoredResponse>& response);
  void forget(Order::iterator at);

  const Limits limits_;
  std::mutex mutex_;
  Order order_;  // the least recently used one first
  std::unordered_map<std::string, Order::iterator> by_id_;
  std::unordered_map<const StoredResponse*, Held> held_;  // and what they refer to
  size_t num_bytes_ = 0;
};

}  // namespace nanovllm::server
