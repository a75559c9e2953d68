#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/system/input_file.h"
#include "nanovllm/checkpoint/safetensors.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// Number of files and tensors of a checkpoint, and the bytes of the files.
struct CheckpointSize {
  size_t num_files = 0, num_tensors = 0, bytes = 0;
};

/// All weights of a checkpoint folder: model.safetensors, or the files that
/// model.safetensors.index.json lists. Every error is a UserError that names file and tensor. One
/// thread at a time; the WeightRows that it returns may be read by any thread.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  /// The tensor `name`, of one or two dimensions; a vector has one column. It can be read even
  /// after the Checkpoint is destroyed. Throws if it is missing, if its shape is not `shape`, or if
  /// its dtype is not BF16, F16 or F32.
  WeightRows take(const std::string& name, const std::vector<int64_t>& shape);
  /// Throws if a tensor was never taken, unless `ignorable` returns true for its name.
  void require_all_taken(const std::function<bool(const std::string&)>& ignorable) const;
  /// Throws if a file was written to since it was opened, because what was read may be a mixture of
  /// the old and the new contents.
  void require_unchanged() const;
  CheckpointSize size() const;

 private:
  struct Slot {
    SafetensorsEntry entry;
    size_t file = 0;
    bool taken = false;
  };
  void add_file(const std::string& path);
  void add_shards(const std::string& index_path);

  std::string folder_;
  std::vector<std::shared_ptr<const InputFile>> files_;
  std::map<std::string, Slot> tensors_;
};

}  // namespace nanovllm
