#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/server/http/cors.h"

namespace nanovllm::server {

/// Settings of `nanovllm serve`.
struct ServerOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string uds;                         ///< a Unix socket instead of host and port
  std::vector<std::string> api_keys;       ///< none: every client may do everything
  std::vector<std::string> served_names;   ///< the names of the model; none: as it was given
  std::string chat_template;               ///< a file instead of the checkpoint's template
  std::string generation_config = "auto";  ///< auto: the checkpoint's sampling values are defaults
  CorsOptions cors;
  bool access_log = true;
  std::vector<std::string> quiet_paths;  ///< that the access log leaves out
  int64_t max_queued_requests = 1024;    ///< answers that wait besides those that run
  double shutdown_timeout = 30;          ///< seconds for running requests after SIGTERM
  std::string version;                   ///< what GET /version says
};

/// Serves a model over HTTP until a signal ends it. It listens at once and answers /health with
/// 503 while the model is being loaded. SIGTERM or SIGINT drains: new requests are refused, running
/// ones end within shutdown_timeout; a second signal ends at once. Returns the exit status: 0 after
/// a drain, 1 if the engine failed. Throws UserError, also if the address cannot be used. `model`
/// is a folder. It handles these signals itself, raises the limit of open files, and ends the
/// process with _exit() after a second signal, after one while the model is being loaded, and if a
/// client does not take its response at the end.
int run_server(const std::string& model, const EngineConfig& config, const ServerOptions& options);

}  // namespace nanovllm::server
