#pragma once

#include <cstdint>
#include <string>

namespace nanovllm::hub {

/// The settings of the hub and its cache from environment variables, which are those of the package
/// huggingface_hub, so that both use the same cache, server and token.
struct Settings {
  /// HF_HUB_CACHE; else hub in HF_HOME, $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface.
  std::string cache_folder;
  std::string endpoint;     ///< HF_ENDPOINT, else https://huggingface.co; without '/' at its end
  bool is_offline = false;  ///< HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is 1, on, yes or true
  int64_t timeout_seconds = 0;  ///< HF_HUB_DOWNLOAD_TIMEOUT: a connection without data is dead then

  /// The endpoint for messages, without the user's name and password.
  std::string shown_endpoint() const;

  /// Throws UserError if a value cannot be used.
  static Settings from_environment();
};

/// The user's token: HF_TOKEN, else the file that `hf auth login` writes (HF_TOKEN_PATH, else token
/// in HF_HOME). Empty if there is none. Throws UserError if it has characters that no token has.
std::string token_from_environment();

}  // namespace nanovllm::hub
