#include "nanovllm/hub/download/http_errors.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/hub/cache.h"

namespace nanovllm::hub {

namespace {

/// The nearest of the other ids in the cache.
std::string nearest(const ModelId& id, const Settings& settings) {
  std::vector<std::string> ids = list_ids(settings.cache_folder);
  if (std::ranges::count(ids, id.name) > 0) return "";
  return did_you_mean(id.name, ids);
}

constexpr int64_t kUnauthorized = 401, kForbidden = 403, kNotFound = 404, kTimeout = 408,
                  kTooMany = 429, kServerErrors = 500;

}  // namespace

bool is_temporary(const HttpReply& reply) {
  return reply.status == kTimeout || reply.status == kTooMany || reply.status >= kServerErrors;
}

std::string describe_temporary(const HttpReply& reply, const Settings& settings) {
  if (reply.status == kTooMany)
    return fmt::format("{} asks for fewer requests (status 429); users with a token may send more",
                       settings.shown_endpoint());
  return fmt::format("{} has a problem (status {})", settings.shown_endpoint(), reply.status);
}

void fail_for(const HttpReply& reply, const ModelId& id, const Settings& settings, bool has_token,
              const std::string& file) {
  const std::string page = settings.shown_endpoint() + "/" + id.name;
  const std::string tokens = settings.shown_endpoint() + "/settings/tokens";
  if (reply.error_code == "GatedRepo") {
    require(has_token,
            "{} is a gated model: accept its licence at {}, then set HF_TOKEN to a token from {}",
            id.name, page, tokens);
    fail(
        "{} is a gated model, and the account of your HF_TOKEN has no access: accept its licence "
        "at {}, and wait until its owner has agreed",
        id.name, page);
  }
  if (reply.error_code == "RevisionNotFound")
    fail("{} has no revision '{}'; {}/tree/main shows its branches and tags", id.name, id.revision,
         page);
  if (reply.error_code == "EntryNotFound")
    fail("{}: the hub lists a file that it does not have; try again later", id.name);
  const bool may_be_private = reply.status == kUnauthorized || reply.status == kForbidden;
  if (may_be_private || reply.status == kNotFound) {
    // The hub has just listed the file, so there is such a model.
    if (!file.empty())
      fail("{}: {}: {} answers with the status {}", id.text(), file, settings.shown_endpoint(),
           reply.status);
    const char* const token = has_token ? "your HF_TOKEN gives no access to it"
                                        : "it is private: then set HF_TOKEN to a token";
    fail("{}: no such folder, and {} has no model of this name (or {}){}", id.text(),
         settings.shown_endpoint(), token, nearest(id, settings));
  }
  const std::string what = file.empty() ? id.text() : id.text() + ": " + file;
  throw std::runtime_error(fmt::format("{}: {} answers with the status {}", what,
                                       settings.shown_endpoint(), reply.status));
}

void fail_unreachable(const NetworkError& error, const ModelId& id, const Settings& settings) {
  fail(
      "{}: it is neither a folder nor complete in the cache {}, and {} cannot be reached ({}); "
      "check the name, the network and https_proxy{}",
      id.text(), settings.cache_folder, settings.shown_endpoint(), error.what(),
      nearest(id, settings));
}

}  // namespace nanovllm::hub
