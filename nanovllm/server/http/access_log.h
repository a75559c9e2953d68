#pragma once

#include <string>
#include <vector>

#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

/// Writes one line for each request to the log: its id, method, path and status, its tokens and
/// times if text was generated, and why it ended. No text of a client can break a line.
class AccessLog {
 public:
  /// Requests for `quiet_paths` are not logged; probes would fill the log.
  explicit AccessLog(bool is_on = true, std::vector<std::string> quiet_paths = {});
  /// `start` is when the request began to arrive, on the steady clock. `client_is_gone` says that
  /// the client closed the connection, or was too slow, before the response had ended.
  void write(const HttpRequest& request, const HttpReply& reply, double start,
             bool client_is_gone) const;

 private:
  const bool is_on_;
  const std::vector<std::string> quiet_paths_;
};

}  // namespace nanovllm::server
