// pull, list and remove: the models in the Hugging Face cache.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <string>

#include "commands.h"
#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/download/download_bars.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/hub/settings.h"
#include "terminal.h"

namespace nanovllm {

namespace {

constexpr const char* kStatus =
    "\nExit status: 0 if all is done; 2 if an option or the id was refused; 130 after Ctrl-C; 143 "
    "after SIGTERM; 1 for any other failure.";

int pull(const std::string& id, bool verify) {
  print_out(hub::pull_model(id, verify) + "\n");
  return kExitOk;
}

int list() {
  const auto entries = hub::list_models(hub::Settings::from_environment().cache_folder);
  size_t width = 2;
  for (const hub::CacheEntry& entry : entries) width = std::max(width, entry.id.size());
  std::string text = fmt::format("{:<{}}  {:>8}  {}\n", "ID", width, "SIZE", "LAST USE");
  for (const hub::CacheEntry& entry : entries) {
    const std::string time =
        entry.last_used == 0 ? "-"
                             : fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(entry.last_used));
    text += fmt::format("{:<{}}  {:>8}  {}{}\n", entry.id, width, hub::size_text(entry.bytes), time,
                        entry.is_complete ? "" : "  incomplete");
  }
  print_out(text);
  return kExitOk;
}

int remove(const std::string& id) {
  hub::remove_model(hub::Settings::from_environment().cache_folder, id);
  print_out(fmt::format("removed {}\n", id));
  return kExitOk;
}

Command add(Command program, const char* name, const char* description, const char* argument_help,
            const std::function<int(const std::string&)>& run) {
  Command sub = program.add_command(name, description);
  auto id = std::make_shared<std::string>();
  sub.add_required("ID", *id, argument_help).type_name("ID").check(not_empty());
  sub.action([id, run] { return run(*id); });
  return sub;
}

}  // namespace

void add_model_commands(Command program) {
  auto verify = std::make_shared<bool>(false);
  Command sub = add(program, "pull", "Download a model from the Hugging Face hub into the cache",
                    "The model: ORG/NAME, or ORG/NAME@REVISION",
                    [verify](const std::string& id) { return pull(id, *verify); });
  sub.add_flag("--verify", *verify,
               "Also check the checksums of the files that are there, and download damaged ones "
               "again");
  sub.footer(std::string(R"(Examples:
  nanovllm pull Qwen/Qwen3-0.6B
  nanovllm pull Qwen/Qwen3-0.6B@main
  nanovllm pull Qwen/Qwen3-0.6B --verify

It asks the hub for the newest commit, downloads what the cache lacks, and prints the folder. If it
is interrupted, the same command continues. The cache is that of Hugging Face's own tools
(~/.cache/huggingface/hub, or HF_HOME). A gated model needs HF_TOKEN; see docs/models.md.

A file whose size is right counts as complete. After a crash or on a failing disk its contents may
be damaged nevertheless; --verify reads all of it. Without a network it checks what the cache says
itself, and names the damaged files.
)") + kStatus);

  sub = program.add_command("list", "List the models in the Hugging Face cache");
  sub.footer(std::string(R"(Examples:
  nanovllm list

For each model it prints its id, its size on the disk and when it was last used. A model that was
not downloaded completely, or that has no safetensors weights, is marked as incomplete.
)") + kStatus);
  sub.action(list);

  add(program, "remove", "Remove a model from the Hugging Face cache",
      "The model, as 'nanovllm list' prints it", remove)
      .footer(std::string(R"(Examples:
  nanovllm remove Qwen/Qwen3-0.6B

It removes all revisions of the model. Programs that use it at the moment keep their files.
)") + kStatus);
}

}  // namespace nanovllm
