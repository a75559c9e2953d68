#include "apps/cli/model_argument.h"

#include <optional>

#include "nanovllm/hub/hub.h"

namespace nanovllm {

Option add_model_argument(Command command, std::string& model) {
  return command
      .add_required("MODEL", model,
                    "Checkpoint folder in Hugging Face layout, or a Hugging Face id "
                    "(ORG/NAME[@REVISION]), which is downloaded if it is not in the cache")
      .type_name("FOLDER")
      .check(not_empty());
}

std::string find_model_of(Command command) {
  std::optional<Option> model = command.find_option("MODEL");
  const std::optional<Option> local = command.find_option("--local-files-only");
  if (!model || !local) return "";
  const auto text_of = [&](const char* name) {
    const std::optional<Option> option = command.find_option(name);
    return option ? option->value() : "";
  };
  std::string folder = hub::find_model(
      model->value(),
      {.local_files_only = local->is_on(),
       .needs_weights = command.has_option("--load-format") && text_of("--load-format") != "dummy",
       .revision = text_of("--revision"),
       .download_dir = text_of("--download-dir")});
  model->set_value(folder);
  return folder;
}

}  // namespace nanovllm
