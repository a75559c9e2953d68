#include "nanovllm/hub/hub.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/download/download.h"
#include "nanovllm/hub/model_id.h"
#include "nanovllm/hub/settings.h"
#include "nanovllm/hub/verify.h"

namespace nanovllm::hub {

namespace {

constexpr const char* kOffline = "HF_HUB_OFFLINE forbids downloading it";

/// The id `model`, whose revision an option names.
std::optional<ModelId> with_revision(const std::string& model, const std::string& revision) {
  const std::string given = model.substr(std::min(model.find('@'), model.size()));
  require(given.empty() || given == "@" + revision,
          "--revision is '{}', but the id has another one, {}", revision, model);
  std::optional<ModelId> id =
      parse_model_id(model.substr(0, model.size() - given.size()) + "@" + revision);
  require(id.has_value(), "--revision is '{}'; it must be a branch, a tag or a commit", revision);
  return id;
}

}  // namespace

std::string find_model(const std::string& model, const FindOptions& options) {
  require(!model.empty(),
          "model is empty; it must be a checkpoint folder or the id of a model, ORG/NAME");
  std::optional<ModelId> id = parse_model_id(model);
  if (!id || path_exists(model)) {
    // "main" is accepted for a folder, because vLLM's scripts name it there too.
    require(options.revision.empty() || options.revision == "main",
            "{} is not an id of the hub, so it has no --revision '{}'", model, options.revision);
    return model;
  }
  if (!options.revision.empty()) id = with_revision(model, options.revision);
  Settings settings = Settings::from_environment();
  if (!options.download_dir.empty()) settings.cache_folder = options.download_dir;
  const CachedModel cached(settings.cache_folder, id->name);
  const std::optional<std::string> commit = cached.commit_of(id->revision);
  std::string snapshot = commit ? cached.snapshot(*commit) : "";
  const bool is_there = commit && is_folder(snapshot);
  std::vector<std::string> missing;
  try {
    if (is_there) missing = missing_files(snapshot, options.needs_weights);
  } catch (const UserError& error) {  // the index of the weights is not valid
    fail("{}{}", error.what(), verify_hint(snapshot, error.what()));
  }
  if (is_there && missing.empty()) {
    mark_used(snapshot);
    return snapshot;
  }
  if (!options.local_files_only && !settings.is_offline)
    return download_model(
        *id, settings,
        {.needs_weights = options.needs_weights, .check_interrupt = options.check_interrupt});

  // A model without a tokenizer runs with prompts of token ids.
  if (is_there && lacks_only_tokenizer(snapshot, missing)) return snapshot;
  const char* const forbidden =
      options.local_files_only ? "--local-files-only forbids downloading it" : kOffline;
  require(!is_there, "{}: the copy in the cache {} lacks {}, and {}", model, settings.cache_folder,
          join(missing, ", "), forbidden);
  require(!cached.has_snapshots(), "{}: the cache {} has no revision '{}' of it, and {}", model,
          settings.cache_folder, id->revision, forbidden);
  const std::vector<std::string> ids = list_ids(settings.cache_folder);
  require(std::ranges::count(ids, id->name) == 0,
          "{}: the cache {} does not have it completely, and {}", model, settings.cache_folder,
          forbidden);
  fail("{}: it is neither a folder nor in the cache {}, and {}{}", model, settings.cache_folder,
       forbidden, did_you_mean(id->name, ids));
}

std::string pull_model(const std::string& id, bool verify) {
  const std::optional<ModelId> parsed = parse_model_id(id);
  require(parsed.has_value(),
          "'{}' is not the id of a model: it must be ORG/NAME, or ORG/NAME@REVISION", id);
  const Settings settings = Settings::from_environment();
  std::optional<std::string> folder;
  if (settings.is_offline && verify)
    folder = verify_without_hub(*parsed, settings, kOffline, [] {});
  if (folder) return *folder;
  require(!settings.is_offline, "{}: {}", id, kOffline);
  return download_model(*parsed, settings, {.verify = verify});
}

std::string shown_name(const std::string& folder) {
  const std::filesystem::path path(folder);
  const std::filesystem::path snapshots = path.parent_path();
  if (!is_commit(path.filename().string()) || snapshots.filename() != "snapshots") return folder;
  const std::string id = id_of_folder_name(snapshots.parent_path().filename().string());
  return id.empty() ? folder : id;
}

std::string pull_hint(const std::string& folder) {
  const std::string name = shown_name(folder);
  if (name == folder) return "";
  return fmt::format("; `nanovllm pull {}` downloads files that the copy may lack", name);
}

}  // namespace nanovllm::hub
