#include "nanovllm/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

namespace fs = std::filesystem;

/// The name of the type in the safetensors format.
const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kE4M3:
      return "F8_E4M3";
  }
  return "";
}

std::string list_of(std::initializer_list<DType> dtypes) {
  std::string list;
  for (const DType* dtype = dtypes.begin(); dtype != dtypes.end(); ++dtype)
    list += fmt::format("{}{}",
                        dtype == dtypes.begin()     ? ""
                        : dtype + 1 == dtypes.end() ? " or "
                                                    : ", ",
                        safetensors_name(*dtype));
  return list;
}

/// A tensor of one element has many shapes: published scales are [], [1] or [1, 1].
bool is_same_shape(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const auto is_one = [](int64_t size) { return size == 1; };
  return a == b || (std::ranges::all_of(a, is_one) && std::ranges::all_of(b, is_one));
}

[[noreturn]] void fail_without_weights(const std::string& folder) {
  std::error_code ignored;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, ignored))
    for (const char* extension : {".bin", ".pt", ".pth", ".gguf"})
      require(file.path().extension() != extension,
              "{}: the weights are in another format ({}); safetensors files are needed", folder,
              file.path().filename().string());
  fail("{}: no weights: neither model.safetensors nor model.safetensors.index.json", folder);
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  if (path_exists(single)) add_file(single);
  else if (path_exists(index)) add_shards(index);
  else fail_without_weights(folder);
}

void Checkpoint::add_file(const std::string& path) {
  files_.push_back(std::make_shared<InputFile>(path));
  for (auto& [name, entry] : read_safetensors_header(*files_.back())) {
    const auto [slot, is_new] =
        tensors_.try_emplace(name, Slot{std::move(entry), files_.size() - 1, false});
    require(is_new, "{}: tensor {} is also in {}", path, printable(name),
            files_[slot->second.file]->path());
  }
}

void Checkpoint::add_shards(const std::string& index_path) {
  // Besides the name and the file of each tensor, an index has a few other fields.
  const Json index = parse_sorted_json(read_file(index_path, kMaxIndexBytes), index_path,
                                       /*max_values=*/2 * kMaxTensors + 1000);
  const auto map = index.find("weight_map");
  require(map != index.end() && map->is_object() && !map->empty(),
          "{}: weight_map must name the file of each tensor", index_path);

  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    // A shard must be in the folder itself, so that an index cannot make us open any other file.
    require(shard.is_string() && !shard.string().empty() &&
                shard.string().find_first_of({"/\0", 2}) == std::string::npos,
            "{}: tensor {}: its file must be a file name", index_path, printable(name));
    shards.insert(shard.get<std::string>());
  }
  for (const std::string& shard : shards) {
    const std::string path = fmt::format("{}/{}", folder_, shard);
    std::error_code too_long;  // ignored: a file whose name is too long counts as missing
    require(fs::exists(path, too_long), "{}: shard {} is missing; is the download complete?",
            index_path, printable(shard));
    add_file(path);
  }
  for (const auto& [name, shard] : map->items()) {
    const std::string path = fmt::format("{}/{}", folder_, shard.string());
    const auto slot = tensors_.find(name);
    require(slot != tensors_.end() && files_[slot->second.file]->path() == path,
            "{}: tensor {} is missing, although {} names it", path, printable(name), index_path);
  }
}

WeightRows Checkpoint::take(const std::string& name, const std::vector<int64_t>& shape,
                            std::initializer_list<DType> dtypes) {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), "{}: tensor \"{}\" is missing", folder_, name);
  Slot& slot = found->second;
  const std::shared_ptr<const InputFile>& file = files_[slot.file];
  const SafetensorsEntry& entry = slot.entry;
  const DType* const dtype = std::ranges::find_if(
      dtypes, [&](DType candidate) { return entry.dtype == safetensors_name(candidate); });
  require(dtype != dtypes.end(), "{}: tensor \"{}\" has dtype {}; it must be {}", file->path(),
          name, entry.dtype, list_of(dtypes));
  require(is_same_shape(entry.shape, shape),
          "{}: tensor \"{}\" has shape [{}]; config.json requires [{}]", file->path(), name,
          join(entry.shape, ", "), join(shape, ", "));
  slot.taken = true;

  return {*dtype, shape[0], shape.size() == 1 ? 1 : shape[1],
          [file, offset = entry.offset, size = dtype_size(*dtype)](int64_t first, int64_t count,
                                                                   void* to) {
            file->read(offset + static_cast<size_t>(first) * size, to,
                       static_cast<size_t>(count) * size);
          }};
}

void Checkpoint::require_unchanged() const {
  for (const auto& file : files_) file->require_unchanged();
}

CheckpointSize Checkpoint::size() const {
  CheckpointSize size{files_.size(), tensors_.size(), 0};
  for (const auto& file : files_) size.bytes += file->size();
  return size;
}

void Checkpoint::require_all_taken(const std::function<bool(const std::string&)>& ignorable) const {
  const auto is_zero_bias = [&](const std::string& name, const Slot& slot) {
    constexpr size_t kMostBytes = size_t{1} << 24;
    if (!name.ends_with(".bias") || slot.entry.bytes > kMostBytes) return false;
    std::vector<char> bytes(slot.entry.bytes);
    files_[slot.file]->read(slot.entry.offset, bytes.data(), bytes.size());
    return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
  };
  for (const auto& [name, slot] : tensors_)
    require(slot.taken || ignorable(name) || is_zero_bias(name, slot),
            "{}: tensor {} does not belong to this architecture", files_[slot.file]->path(),
            printable(name));
}

}  // namespace nanovllm
