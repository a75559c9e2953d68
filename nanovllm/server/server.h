#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"
#include "nanovllm/params/generation_config.h"
#include "nanovllm/server/http/cors.h"

namespace nanovllm::server {

/// Settings of `nanovllm serve`.
struct ServerOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string uds;                          ///< a Unix socket instead of host and port
  std::vector<std::string> api_keys;        ///< none: every client may do everything
  std::vector<std::string> served_names;    ///< the names of the model; none: as it was given
  std::string chat_template;                ///< a file instead of the checkpoint's template
  GenerationConfig generation_config;       ///< the default sampling parameters
  Json template_defaults = Json::object();  ///< default variables of the chat template
  std::string tool_call_parser = "auto";    ///< how the model writes calls (AnswerForm)
  std::string reasoning_parser = "auto";    ///< how it writes thoughts
  bool drops_media = false;                 ///< images and files become texts that say so
  CorsOptions cors;
  /// Names of the server besides those of the loopback interface, or "*" (AllowedHosts). Without
  /// any, a server that listens on another interface allows all names.
  std::vector<std::string> allowed_hosts;
  bool access_log = true;
  std::vector<std::string> quiet_paths;  ///< paths that the access log leaves out
  int64_t max_queued_requests = 1024;    ///< answers that may wait besides those that run
  /// A stream that has nothing to send for this many seconds sends a comment, so that neither the
  /// client nor a proxy takes it for dead; 0: never.
  double sse_keepalive = 10;
  /// How many responses of /v1/responses are kept, so that requests can continue them (0: none),
  /// and the most memory that they take.
  int64_t max_stored_responses = 1000;
  int64_t stored_responses_bytes = int64_t{256} << 20;
  double shutdown_timeout = 30;  ///< seconds for running requests after SIGTERM
  std::string version;           ///< the version that GET /version shows
  std::string note;              ///< a line for the log, once it is known where it listens
};

/// Serves a model over HTTP until a signal ends it. It listens at once and answers /health with
/// 503 while the model is being loaded. SIGTERM or SIGINT drains: new requests are refused, running
/// ones end within shutdown_timeout; a second signal ends at once. Returns the exit status: 0 after
/// a drain, 1 if the engine failed. Throws UserError, also if the address cannot be used; an error
/// about an option begins with the name of the field. `model` is a folder. The function handles
/// these signals itself, raises the limit of open files, sets the handler of operator new, and ends
/// the process with _exit() after a second signal, after a signal while the model is being loaded,
/// and if a client does not take its response at the end.
int run_server(const std::string& model, const EngineConfig& config, const ServerOptions& options);

}  // namespace nanovllm::server
