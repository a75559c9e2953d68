#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "apps/cli/json_values.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "apps/cli/vllm_options.h"
#include "apps/commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/server/conversation/answer_form.h"
#include "nanovllm/server/server.h"

namespace nanovllm {

namespace {

struct ServeOptions : server::ServerOptions {
  std::string model, api_key_file, log_level = "info", template_defaults_text;
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

/// Refuses the name of an option as a value: an option that takes several values would take it.
std::string refuse_option(const std::string& name) {
  return name.starts_with('-') ? fmt::format("'{}' is an option, not a name", name) : "";
}

/// Adds an option whose value is one of many names, which its description lists.
void add_name(Command sub, const std::string& option, std::string& value,
              const std::vector<std::string>& known, const std::string& text) {
  sub.add_value(option, value, fmt::format("{}. Names: {}", text, fmt::join(known, ", ")))
      .type_name("NAME")
      .check(known_name(known))
      .show_default();
}

/// Splits each text at its commas.
std::vector<std::string> split_at_commas(const std::vector<std::string>& lists) {
  std::vector<std::string> parts;
  for (const std::string& list : lists) {
    std::istringstream text(list);
    for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
  }
  return parts;
}

/// An error of the server about an option, with the option's name instead of the field's.
std::string with_option_name(const std::string& message) {
  for (const std::string field : {"port", "uds", "allowed_hosts", "max_queued_requests",
                                  "max_stored_responses", "sse_keepalive", "shutdown_timeout"}) {
    if (!message.starts_with(field + " ") && !message.starts_with(field + ":")) continue;
    std::string option = "--" + field;
    std::ranges::replace(option, '_', '-');
    return option + message.substr(field.size());
  }
  return message;
}

void set_log_level(const std::string& name) {
  log().set_level(name == "warning" ? spdlog::level::warn : spdlog::level::from_str(name));
}

int serve(ServeOptions& options, const std::vector<std::string>& quiet) {
  // Validate now, and not only when the server already listens and loads the model.
  options.config.validate();
  options.generation_config.defaults(options.model);
  if (!options.template_defaults_text.empty())
    options.template_defaults =
        object_of(options.template_defaults_text, "--default-chat-template-kwargs");
  read_api_keys(options);
  server::CorsOptions& cors = options.cors;
  cors.origins = texts_of("--allowed-origins", cors.origins);
  cors.methods = texts_of("--allowed-methods", cors.methods);
  cors.headers = texts_of("--allowed-headers", cors.headers);
  options.allowed_hosts = split_at_commas(texts_of("--allowed-hosts", options.allowed_hosts));
  options.quiet_paths = split_at_commas(quiet);
  if (options.served_names.empty()) options.served_names = {hub::shown_name(options.model)};
  try {
    return server::run_server(options.model, options.config, options);
  } catch (const UserError& error) {
    throw UserError(with_option_name(error.what()));
  }
}

void add_server_options(Command sub, ServeOptions& options, std::vector<std::string>& quiet) {
  sub.add_value("--host", options.host, "The address to listen on")
      .type_name("ADDRESS")
      .check(not_empty())
      .show_default();
  sub.add_value("--port", options.port, "The port to listen on; 0: any free one")
      .type_name("N")
      .show_default();
  sub.add_file("--uds", options.uds, "Listen on a Unix socket instead");
  sub.add_value("--api-key", options.api_keys,
                "A key that clients have to send; may be given several times. Without this option "
                "and --api-key-file: $NANOVLLM_API_KEY or $VLLM_API_KEY")
      .type_name("KEY");
  sub.add_file("--api-key-file", options.api_key_file, "A file with a key in each line");
  sub.add_value("--served-model-name", options.served_names,
                "A name of the model for clients; several names may follow, or the option may be "
                "given several times")
      .type_name("NAME")
      .check(not_empty())
      .check(refuse_option)
      .take_several();
  sub.add_file("--chat-template", options.chat_template,
               "A Jinja file instead of the checkpoint's chat template");
  sub.add_flag("--allow-dropped-media", options.drops_media,
               "Replace images, sounds and files in conversations by a text that says so, instead "
               "of refusing the request");
  add_name(sub, "--tool-call-parser", options.tool_call_parser, server::tool_call_parsers(),
           "The form in which the model calls tools; auto: the one that the chat template shows");
  add_name(sub, "--reasoning-parser", options.reasoning_parser, server::reasoning_parsers(),
           "Whether the text between <think> and </think> is divided from the content; auto: if "
           "the tokenizer has these tags; none: no; any other name: yes");
  add_generation_config(sub, options.generation_config);
  sub.add_value("--default-chat-template-kwargs", options.template_defaults_text,
                "A JSON object of variables of the chat template that a request may replace, such "
                "as {\"enable_thinking\": false}")
      .type_name("JSON")
      .check(utf8_text());
  sub.add_value("--max-queued-requests", options.max_queued_requests,
                "Answers that may wait (a request has n); further requests get status 429")
      .type_name("N")
      .show_default();
  sub.add_value("--max-stored-responses", options.max_stored_responses,
                "Answers of /v1/responses that are kept, so that requests can continue them; 0: "
                "none")
      .type_name("N")
      .show_default();
  sub.add_bytes("--stored-responses-bytes", options.stored_responses_bytes,
                "The most memory for them, such as 256M")
      .type_name("BYTES")
      .show_default();
  sub.add_value("--sse-keepalive", options.sse_keepalive,
                "A stream in which nothing happens for so many seconds sends a comment; 0: never")
      .type_name("S")
      .show_default();
  sub.add_value("--shutdown-timeout", options.shutdown_timeout,
                "Seconds in which running requests may end after SIGTERM")
      .type_name("S")
      .show_default();
  sub.add_value("--allowed-hosts", options.allowed_hosts,
                "A name or address that clients may use for the server, besides those of the "
                "loopback interface, or * for all; may be given several times, separated by "
                "commas, or as a JSON list. Without it, a server on another interface allows all")
      .type_name("HOST");
  sub.add_value("--allowed-origins", options.cors.origins,
                "An origin whose pages may use the server from a browser, or * for all; may be "
                "given several times, or as a JSON list. Pages of other sites get status 403")
      .type_name("ORIGIN");
  sub.add_value("--allowed-methods", options.cors.methods, "The same for methods (default: all)")
      .type_name("METHOD");
  sub.add_value("--allowed-headers", options.cors.headers, "The same for headers (default: all)")
      .type_name("HEADER");
  sub.add_flag("--allow-credentials", options.cors.allows_credentials,
               "Pages of these origins may send credentials, such as cookies");
  sub.add_flag(
      "--disable-access-log,--disable-uvicorn-access-log",
      [&options] { options.access_log = false; }, "Do not write a line for each request to stderr");
  sub.add_value("--disable-access-log-for-endpoints", quiet,
                "Do not write one for these paths, separated by commas, such as /health,/metrics")
      .type_name("PATHS");
  sub.add_choice("--log-level,--uvicorn-log-level", options.log_level,
                 "trace|debug|info|warning|error|critical", "The least important lines of the log");
}

}  // namespace

void add_serve(Command program) {
  Command sub = program.add_command("serve", "Serve a model over HTTP, as the OpenAI API does");
  auto options = std::make_shared<ServeOptions>();
  auto quiet = std::make_shared<std::vector<std::string>>();
  options->version = NANOVLLM_VERSION;
  add_model_argument(sub, options->model);
  add_server_options(sub, *options, *quiet);
  // Steps are smaller than those of batch work, so that a long prompt delays the other answers
  // less.
  options->config.cpu_batched_tokens = 512;
  options->config.cuda_batched_tokens = 8192;
  add_engine_options(sub, options->config);
  sub.option("--max-num-batched-tokens")
      .description("Maximum number of tokens per step; 0: 512 on the CPU, 8192 on a GPU");
  sub.footer(std::string(R"(Examples:
  nanovllm serve models/tiny-tales
  nanovllm serve models/tiny-tales --host 0.0.0.0 --api-key-file keys.txt
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'

Exit status: 0 after Ctrl-C or SIGTERM, when the running requests have ended; 130 or 143 after a
second one, or after the first while the model is being loaded; 2 if an option or a file was refused
(one line on stderr explains it); 1 for any other failure.)"));
  sub.action([options, quiet, sub] {
    set_log_level(options->log_level);
    options->note = note_without_effect(sub);
    return serve(*options, *quiet);
  });
}

}  // namespace nanovllm
