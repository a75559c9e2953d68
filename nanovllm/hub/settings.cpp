#include "nanovllm/hub/settings.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm::hub {

namespace {

constexpr int64_t kDefaultTimeout = 10, kMaxTimeout = 3600;
constexpr size_t kMaxTokenBytes = 1 << 12;

/// The first of the variables that is set and not empty.
template <class... Names>
std::string variable(Names... names) {
  for (const char* name : {names...})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return {};
}

/// Where huggingface_hub keeps its files; empty if there is no home folder.
std::string huggingface_folder() {
  if (const std::string folder = variable("HF_HOME"); !folder.empty()) return expand_home(folder);
  const std::string cache = user_folder("XDG_CACHE_HOME", ".cache");
  return cache.empty() ? cache : cache + "/huggingface";
}

bool is_true(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

bool is_printable(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
}

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == text.npos ? "" : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  settings.cache_folder = expand_home(variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"));
  if (settings.cache_folder.empty()) {
    const std::string folder = huggingface_folder();
    require(!folder.empty(), "there is no home folder for downloaded models; set HF_HOME");
    settings.cache_folder = folder + "/hub";
  }
  settings.endpoint = variable("HF_ENDPOINT");
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  require((settings.endpoint.starts_with("https://") || settings.endpoint.starts_with("http://")) &&
              is_printable(settings.endpoint),
          "HF_ENDPOINT is '{}'; it must be the address of a hub, such as https://huggingface.co",
          settings.shown_endpoint());
  settings.is_offline = is_true(variable("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"));
  const int64_t seconds = std::atoll(variable("HF_HUB_DOWNLOAD_TIMEOUT").c_str());
  settings.timeout_seconds = seconds > 0 ? std::min(seconds, kMaxTimeout) : kDefaultTimeout;
  return settings;
}

std::string Settings::shown_endpoint() const {
  const size_t scheme = endpoint.find("://");
  const size_t host = scheme == endpoint.npos ? 0 : scheme + 3;
  const size_t at = endpoint.substr(0, endpoint.find('/', host)).rfind('@');
  if (at == endpoint.npos || at < host) return endpoint;
  return endpoint.substr(0, host) + endpoint.substr(at + 1);
}

std::string token_from_environment() {
  std::string token = stripped(variable("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"));
  std::string from = "HF_TOKEN";
  if (token.empty()) {
    from = expand_home(variable("HF_TOKEN_PATH"));
    if (from.empty()) from = huggingface_folder() + "/token";
    token = stripped(read_file_if_there(from, kMaxTokenBytes).value_or(""));
  }
  require(is_printable(token), "{}: a token has only letters, digits and punctuation", from);
  return token;
}

}  // namespace nanovllm::hub
