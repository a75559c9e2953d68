#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nanovllm::hub {

/// A model on the Hugging Face hub: ORG/NAME, optionally followed by @REVISION.
struct ModelId {
  std::string name;               ///< "Qwen/Qwen3-0.6B"
  std::string revision = "main";  ///< a branch, a tag or a commit
  /// The id as users write it, without "@main".
  std::string text() const;
};

/// The id that `model` is, or nothing if it cannot be one. Paths such as "./x" or "a/b/c" cannot.
std::optional<ModelId> parse_model_id(std::string_view model);

/// The name of the model's folder in the cache: "models--Qwen--Qwen3-0.6B".
std::string folder_name(std::string_view id);
/// The id for a name of folder_name(); empty if the folder is not that of a model.
std::string id_of_folder_name(std::string_view folder);

/// Whether `text` is a commit: 40 hexadecimal digits in lower case.
bool is_commit(std::string_view text);
/// Whether `text` has exactly `len` hexadecimal digits in lower case.
bool is_hex(std::string_view text, size_t len);

}  // namespace nanovllm::hub
