#include "nanovllm/ops/choice_file.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <filesystem>
#include <optional>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/logging.h"

namespace nanovllm {

namespace {

/// A model has about 20 KB.
constexpr size_t kMaxBytes = size_t{1} << 20;

std::string checksum_line(const std::string& text) {
  return fmt::format("checksum {:016x}\n", XXH64(text.data(), text.size(), 0));
}

}  // namespace

ChoiceFile::ChoiceFile(const std::string& folder, const std::string& environment)
    : folder_(folder), header_("nanovllm GEMM choices, version 1\n" + environment + "\n") {
  if (!folder.empty())
    path_ = fmt::format("{}/gemm-{:016x}.txt", folder, XXH64(header_.data(), header_.size(), 0));
}

std::string ChoiceFile::read() const {
  if (path_.empty()) return {};
  try {
    const std::optional<std::string> text = read_file_if_there(path_, kMaxBytes);
    if (!text) return {};
    const size_t end_size = checksum_line("").size();
    require(text->starts_with(header_) && text->size() >= header_.size() + end_size,
            "{}: not the choices of this GPU, driver and build", path_);
    const std::string body = text->substr(0, text->size() - end_size);
    require(text->ends_with(checksum_line(body)), "{}: damaged", path_);
    return body.substr(header_.size());
  } catch (const std::exception& error) {
    log().warn("the cache of kernel choices is ignored: {}", error.what());
    return {};
  }
}

void ChoiceFile::write(const std::string& choices) const {
  if (path_.empty()) return;
  try {
    std::filesystem::create_directories(folder_);
    const std::string text = header_ + choices;
    replace_file(path_, text + checksum_line(text));
  } catch (const std::exception& error) {
    log().warn("the choices of kernels are not kept for later processes: {}", error.what());
  }
}

}  // namespace nanovllm
