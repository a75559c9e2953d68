#include "nanovllm/base/model_folder.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

void require_model_folder(const std::string& folder) {
  if (is_folder(folder)) return;
  require(!path_exists(folder),
          "{} is a file; a checkpoint folder in Hugging Face layout is needed", folder);
  const bool is_id =  // OWNER/NAME, as the hub has it
      std::count(folder.begin(), folder.end(), '/') == 1 && !folder.starts_with('/') &&
      !folder.starts_with('.') && !folder.ends_with('/') &&
      folder.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
          "._-/") == std::string::npos;
  const std::string id = is_id ? folder : "Qwen/Qwen3-0.6B";
  fail(
      "{}: no such folder; to download {}: pip install huggingface_hub; hf download {} "
      "--local-dir {}",
      folder, is_id ? "this model" : "a model", id, id.substr(id.find('/') + 1));
}

}  // namespace nanovllm
