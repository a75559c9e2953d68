#include "nanovllm/hub/remote_model.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/hub/model_id.h"

namespace nanovllm::hub {

namespace {

// Limits for the answers of a hub, far above the numbers of any published model
// (progress.bounded-work).
constexpr size_t kMaxFiles = 200'000, kMaxShards = 10'000, kMaxIndexValues = 4'000'000;
constexpr uint64_t kMaxWeightBytes = uint64_t{1} << 42;

/// The small files to download. Some files of tokenizers are read only by transformers, but with
/// them both programs can share the copy.
constexpr const char* kSmallFiles[] = {"config.json",
                                       "generation_config.json",
                                       "hf_quant_config.json",
                                       "quantize_config.json",
                                       "quant_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "tokenizer.model",
                                       "chat_template.jinja",
                                       "chat_template.json",
                                       "additional_chat_templates/tool_use.jinja"};

const RemoteFile* find_file(const RemoteModel& model, std::string_view name) {
  const auto found = std::ranges::find(model.files, name, &RemoteFile::name);
  return found == model.files.end() ? nullptr : &*found;
}

const RemoteFile& checked(const std::string& id, const RemoteFile& file, uint64_t max_bytes) {
  require(checksum_kind(file.digits) == file.kind, "{}: the hub gives no valid checksum for {}", id,
          file.name);
  require(file.size <= max_bytes, "{}: {} has {} bytes; at most {} are expected", id, file.name,
          file.size, max_bytes);
  return file;
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

uint64_t size_of(const Json& object, uint64_t otherwise) {
  const auto found = object.find("size");
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : otherwise;
}

/// The file that an entry of the API's list describes. A missing size becomes the largest number,
/// which checked() refuses.
RemoteFile file_of(const Json& entry) {
  RemoteFile file{.name = text_of(entry, "rfilename"),
                  .size = size_of(entry, UINT64_MAX),
                  .digits = text_of(entry, "blobId")};
  if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
    file.size = size_of(*lfs, file.size);
    file.digits = text_of(*lfs, "sha256");
    file.kind = ChecksumKind::kSha256;
  }
  return file;
}

}  // namespace

std::vector<RemoteFile> RemoteModel::small_files(const std::string& id) const {
  std::vector<RemoteFile> found;
  for (const char* name : kSmallFiles)
    if (const RemoteFile* file = find_file(*this, name))
      found.push_back(checked(id, *file, kMaxTokenizerBytes));
  require(!found.empty() && found.front().name == "config.json",
          "{} has no config.json; it is not a model that can be loaded", id);
  if (has_shards()) found.push_back(checked(id, *find_file(*this, kWeightsIndex), kMaxIndexBytes));
  return found;
}

bool RemoteModel::has_shards() const {
  return find_file(*this, kSingleWeights) == nullptr && find_file(*this, kWeightsIndex) != nullptr;
}

std::vector<RemoteFile> RemoteModel::weight_files(const std::string& id,
                                                  const std::set<std::string>& shards) const {
  if (!has_shards() && find_file(*this, kSingleWeights) == nullptr) {
    const auto other = std::ranges::find_if(files, [](const RemoteFile& file) {
      return file.name.ends_with(".bin") || file.name.ends_with(".gguf") ||
             file.name.ends_with(".pth") || file.name.ends_with(".pt");
    });
    require(other == files.end(),
            "{}: the weights are in another format ({}); safetensors files are needed", id,
            other->name);
    fail("{} has no weights: neither {} nor {}", id, kSingleWeights, kWeightsIndex);
  }
  std::vector<RemoteFile> found;
  uint64_t total = 0;
  for (const std::string& name : has_shards() ? shards : std::set<std::string>{kSingleWeights}) {
    const RemoteFile* const file = find_file(*this, name);
    require(file != nullptr, "{}: {} names {}, which the hub does not have", id, kWeightsIndex,
            name);
    found.push_back(checked(id, *file, kMaxWeightBytes));
    total += file->size;
    require(total <= kMaxWeightBytes, "{}: the weights have more than {} bytes", id,
            kMaxWeightBytes);
  }
  return found;
}

bool is_model_file(std::string_view name) {
  return std::ranges::count(kSmallFiles, name) > 0 || name == kWeightsIndex ||
         (name.ends_with(".safetensors") && name.find('/') == name.npos);
}

RemoteModel parse_remote_model(std::string_view text, const std::string& where) {
  RemoteModel model;
  try {
    const Json json = parse_json(text, where);
    require(json.is_object(), "not a JSON object");
    model.commit = text_of(json, "sha");
    require(is_commit(model.commit), "no valid commit in 'sha'");
    const auto siblings = json.find("siblings");
    require(siblings != json.end() && siblings->is_array(), "no list of files in 'siblings'");
    require(siblings->size() <= kMaxFiles, "more than {} files", kMaxFiles);
    for (const Json& entry : *siblings)
      if (entry.is_object()) model.files.push_back(file_of(entry));
  } catch (const UserError& e) {
    throw std::runtime_error(
        fmt::format("{} does not answer as the Hugging Face hub does: {}", where, e.what()));
  }
  return model;
}

std::set<std::string> shards_of_index(std::string_view index, const std::string& where) {
  const Json json = parse_sorted_json(index, where, kMaxIndexValues);
  const auto map = json.find("weight_map");
  require(map != json.end() && map->is_object() && !map->empty(),
          "{}: weight_map must name the file of each tensor", where);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    constexpr size_t kMaxLen = 200;
    const std::string* const name = shard.is_string() ? &shard.string() : nullptr;
    const bool is_plain =
        name != nullptr && name->size() <= kMaxLen && name->ends_with(".safetensors") &&
        name->front() != '.' &&
        std::ranges::all_of(*name, [](char c) { return c > ' ' && c < 127 && c != '/'; });
    require(is_plain, "{}: {} is not the name of a safetensors file in the model's folder", where,
            printable(shard));
    shards.insert(*name);
    require(shards.size() <= kMaxShards, "{}: more than {} files", where, kMaxShards);
  }
  return shards;
}

}  // namespace nanovllm::hub
