#include <memory>

#include "apps/cli/options.h"
#include "apps/commands.h"
#include "nanovllm/server/server.h"

namespace nanovllm {

namespace {

struct ServeOptions : server::ServerOptions {
  std::string model;
  EngineConfig config;
};

}  // namespace

void add_serve(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("serve", "Serve a model over HTTP, as the OpenAI API does");
  auto options = std::make_shared<ServeOptions>();
  options->version = NANOVLLM_VERSION;
  add_model_argument(*sub, options->model);
  add_value(*sub, "--host", options->host, "The address to listen on")->type_name("ADDRESS");
  add_value(*sub, "--port", options->port, "The port to listen on; 0: any free one")
      ->type_name("N");
  add_value(*sub, "--api-key", options->api_keys,
            "A key that clients have to send; may be given several times")
      ->type_name("KEY");
  add_value(*sub, "--served-model-name", options->served_names,
            "A name of the model for clients; may be given several times")
      ->type_name("NAME");
  add_value(*sub, "--max-queued-requests", options->max_queued_requests,
            "Requests that may wait; more get status 429")
      ->type_name("N");
  add_value(*sub, "--shutdown-timeout", options->shutdown_timeout,
            "Seconds in which running requests may end after SIGTERM")
      ->type_name("S");
  add_engine_options(*sub, options->config);
  sub->footer(std::string(R"(Examples:
  nanovllm serve models/tiny-tales
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello"}]}'
)") + kExitStatusHelp);
  sub->callback([&command, options] {
    command = [options] { return server::run_server(options->model, options->config, *options); };
  });
}

}  // namespace nanovllm
