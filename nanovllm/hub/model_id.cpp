#include "nanovllm/hub/model_id.h"

#include <algorithm>

namespace nanovllm::hub {

namespace {

constexpr std::string_view kFolderPrefix = "models--";
constexpr size_t kMaxIdLen = 96;  // the hub's own limit
constexpr size_t kMaxRevisionLen = 200;

bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

/// An organisation or the name of a model. The hub allows neither "--", which separates the parts
/// of a folder's name, nor "..".
bool is_part(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, is_word_char) && part[0] != '.' &&
         part[0] != '-' && part.find("--") == part.npos && part.find("..") == part.npos;
}

/// A revision becomes a path below refs/, so no part of it may lead to another folder.
bool is_revision(std::string_view text) {
  if (text.size() > kMaxRevisionLen) return false;
  for (;;) {
    const size_t end = std::min(text.find('/'), text.size());
    const std::string_view part = text.substr(0, end);
    if (part.empty() || part[0] == '.' || !std::ranges::all_of(part, is_word_char)) return false;
    if (end == text.size()) return true;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string ModelId::text() const { return revision == "main" ? name : name + "@" + revision; }

std::optional<ModelId> parse_model_id(std::string_view model) {
  ModelId id;
  if (const size_t at = model.find('@'); at != model.npos) {
    id.revision = model.substr(at + 1);
    model = model.substr(0, at);
    if (!is_revision(id.revision)) return std::nullopt;
  }
  const size_t slash = model.find('/');
  if (slash == model.npos || model.size() > kMaxIdLen || !is_part(model.substr(0, slash)) ||
      !is_part(model.substr(slash + 1)))
    return std::nullopt;
  id.name = model;
  return id;
}

std::string folder_name(std::string_view id) {
  std::string name(kFolderPrefix);
  for (const char c : id)
    if (c == '/') name += "--";
    else name += c;
  return name;
}

std::string id_of_folder_name(std::string_view folder) {
  if (!folder.starts_with(kFolderPrefix)) return {};
  folder.remove_prefix(kFolderPrefix.size());
  const size_t end = folder.find("--");
  if (end == folder.npos) return std::string(folder);
  return std::string(folder.substr(0, end)) + "/" + std::string(folder.substr(end + 2));
}

bool is_hex(std::string_view text, size_t len) {
  return text.size() == len && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_commit(std::string_view text) { return is_hex(text, 40); }

}  // namespace nanovllm::hub
