#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "apps/cli/vllm_options.h"
#include "apps/commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/server/server.h"

namespace nanovllm {

namespace {

struct ServeOptions : server::ServerOptions {
  std::string model, api_key_file, log_level = "info";
  EngineConfig config;
};

/// The keys of --api-key and --api-key-file. Without these options, as in vLLM, an environment
/// variable may have a key, which no other user of the machine sees in the list of processes.
void read_api_keys(ServeOptions& options) {
  std::vector<std::string>& keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    constexpr size_t kMostBytes = size_t{1} << 20;
    std::istringstream lines(read_file(options.api_key_file, kMostBytes));
    const size_t before = keys.size();
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) keys.push_back(line);
    }
    require(keys.size() > before, "{}: there is no key; each line is one", options.api_key_file);
  }
  for (const char* name : {"NANOVLLM_API_KEY", "VLLM_API_KEY"})
    if (const char* key = std::getenv(name); keys.empty() && key != nullptr && *key != '\0')
      keys.emplace_back(key);
  for (const std::string& key : keys)
    require(!key.empty() && std::ranges::all_of(key, [](char c) { return c > ' ' && c < 127; }),
            "an API key must be printable ASCII without spaces, and not empty");
}

/// An option that takes several values takes the name of the next option as one, too.
CLI::Validator not_an_option() {
  return {[](const std::string& name) {
            return name.starts_with('-') ? fmt::format("'{}' is an option, not a name", name) : "";
          },
          ""};
}

void set_log_level(const std::string& name) {
  log().set_level(name == "warning" ? spdlog::level::warn : spdlog::level::from_str(name));
}

int serve(ServeOptions& options, const std::vector<std::string>& quiet) {
  options.config.validate();  // now rather than when the server listens and loads the model
  read_api_keys(options);
  server::CorsOptions& cors = options.cors;
  cors.origins = texts_of("--allowed-origins", cors.origins);
  cors.methods = texts_of("--allowed-methods", cors.methods);
  cors.headers = texts_of("--allowed-headers", cors.headers);
  for (const std::string& list : quiet) {
    std::istringstream paths(list);
    for (std::string path; std::getline(paths, path, ',');) options.quiet_paths.push_back(path);
  }
  set_log_level(options.log_level);
  if (options.served_names.empty()) options.served_names = {hub::shown_name(options.model)};
  return server::run_server(options.model, options.config, options);
}

void add_server_options(CLI::App& sub, ServeOptions& options, std::vector<std::string>& quiet) {
  add_value(sub, "--host", options.host, "The address to listen on")
      ->type_name("ADDRESS")
      ->check(not_empty())
      ->capture_default_str();
  add_value(sub, "--port", options.port, "The port to listen on; 0: any free one")
      ->type_name("N")
      ->capture_default_str();
  add_value(sub, "--uds", options.uds, "Listen on a Unix socket instead")
      ->type_name("FILE")
      ->check(not_empty());
  add_value(sub, "--api-key", options.api_keys,
            "A key that clients have to send; may be given several times. Without this option and "
            "--api-key-file: $NANOVLLM_API_KEY or $VLLM_API_KEY")
      ->type_name("KEY");
  add_value(sub, "--api-key-file", options.api_key_file, "A file with a key in each line")
      ->type_name("FILE")
      ->check(not_empty());
  add_value(sub, "--served-model-name", options.served_names,
            "A name of the model for clients; several names may follow, or the option may be given "
            "several times")
      ->type_name("NAME")
      ->check(not_empty())
      ->check(not_an_option())
      ->allow_extra_args();
  add_value(sub, "--chat-template", options.chat_template,
            "A Jinja file instead of the checkpoint's chat template")
      ->type_name("FILE")
      ->check(not_empty());
  add_choice(sub, "--generation-config", options.generation_config, "auto|vllm",
             "auto: use the checkpoint's sampling values; vllm: ignore them");
  add_value(sub, "--max-queued-requests", options.max_queued_requests,
            "Answers that may wait (a request has n); further requests get status 429")
      ->type_name("N")
      ->capture_default_str();
  add_value(sub, "--shutdown-timeout", options.shutdown_timeout,
            "Seconds in which running requests may end after SIGTERM")
      ->type_name("S")
      ->capture_default_str();
  add_value(sub, "--allowed-origins", options.cors.origins,
            "An origin whose pages may use the server from a browser, or * for all; may be given "
            "several times, or as a JSON list")
      ->type_name("ORIGIN");
  add_value(sub, "--allowed-methods", options.cors.methods, "The same for methods (default: all)")
      ->type_name("METHOD");
  add_value(sub, "--allowed-headers", options.cors.headers, "The same for headers (default: all)")
      ->type_name("HEADER");
  sub.add_flag("--allow-credentials", options.cors.allows_credentials,
               "Pages of these origins may send credentials, such as cookies");
  sub.add_flag_callback(
      "--disable-access-log,--disable-uvicorn-access-log",
      [&options] { options.access_log = false; }, "Do not write a line for each request to stderr");
  add_value(sub, "--disable-access-log-for-endpoints", quiet,
            "Do not write one for these paths, separated by commas, such as /health,/metrics")
      ->type_name("PATHS");
  add_choice(sub, "--log-level,--uvicorn-log-level", options.log_level,
             "trace|debug|info|warning|error|critical", "The least important lines of the log");
}

}  // namespace

void add_serve(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("serve", "Serve a model over HTTP, as the OpenAI API does");
  auto options = std::make_shared<ServeOptions>();
  auto quiet = std::make_shared<std::vector<std::string>>();
  options->version = NANOVLLM_VERSION;
  add_model_argument(*sub, options->model);
  add_server_options(*sub, *options, *quiet);
  // Smaller steps than those of batch work, so that a long prompt delays the other answers less.
  options->config.cpu_batched_tokens = 512;
  options->config.cuda_batched_tokens = 8192;
  add_engine_options(*sub, options->config);
  sub->get_option("--max-num-batched-tokens")
      ->description("Maximum number of tokens per step; 0: 512 on the CPU, 8192 on a GPU");
  add_vllm_options(*sub);
  sub->footer(std::string(R"(Examples:
  nanovllm serve models/tiny-tales
  nanovllm serve models/tiny-tales --host 0.0.0.0 --api-key-file keys.txt
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'

Exit status: 0 after Ctrl-C or SIGTERM, when the running requests have ended; 130 or 143 after a
second one, or after the first while the model is being loaded; 2 if an option or a file was refused
(one line on stderr explains it); 1 for any other failure.)"));
  sub->callback([&command, options, quiet] {
    command = [options, quiet] { return serve(*options, *quiet); };
  });
}

}  // namespace nanovllm
