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
#include "nanovllm/model/safetensors.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// All weights of a checkpoint folder: model.safetensors, or the shards that
/// model.safetensors.index.json lists. Every error is a UserError that names file and tensor.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  /// The tensor `name` of float dtype and one or two dimensions, to be read while or after the
  /// Checkpoint lives; a vector has one column. Throws where it is missing, or of another shape or
  /// dtype.
  WeightRows take(const std::string& name, const std::vector<int64_t>& shape);
  /// Throws where a tensor was never taken, but for those that `ignorable` tells by name.
  void require_all_taken(const std::function<bool(const std::string&)>& ignorable) const;
  /// Throws where a file was written to since it was opened: what was read may be of both.
  void require_unchanged() const;

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
