#include "apps/cli/model_argument.h"

#include "apps/cli/options.h"
#include "nanovllm/hub/hub.h"

namespace nanovllm {

CLI::Option* add_model_argument(CLI::App& app, std::string& model) {
  return app
      .add_option("MODEL", model,
                  "Checkpoint folder in Hugging Face layout, or a Hugging Face id "
                  "(ORG/NAME[@REVISION]), which is downloaded if it is not in the cache")
      ->required()
      ->type_name("FOLDER")
      ->check(not_empty());
}

void find_model_of(CLI::App& app) {
  CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  CLI::Option* const model = command->get_option_no_throw("MODEL");
  const CLI::Option* const local = command->get_option_no_throw("--local-files-only");
  if (model == nullptr || local == nullptr) return;
  const CLI::Option* const format = command->get_option_no_throw("--load-format");
  const std::string folder =
      hub::find_model(model->as<std::string>(),
                      {.local_files_only = local->count() > 0,
                       .needs_weights = format != nullptr && format->as<std::string>() != "dummy"});
  model->clear();
  model->add_result(folder);
  model->run_callback();  // sets the command's variable
}

}  // namespace nanovllm
