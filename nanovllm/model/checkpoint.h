#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/mapped_file.h"
#include "nanovllm/base/tensor.h"
#include "nanovllm/model/safetensors.h"

namespace nanovllm {

/// A tensor in host memory, valid while `memory` is held.
struct HostTensor {
  Tensor view;
  std::shared_ptr<const void> memory;
};

/// All weights of a checkpoint folder, mapped: model.safetensors, or the shards that
/// model.safetensors.index.json lists. Every error is a UserError that names file and tensor.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& folder);

  /// The tensor `name` of float dtype, aligned to its elements. Throws where it is missing, or of
  /// another shape or dtype.
  HostTensor take(const std::string& name, const std::vector<int64_t>& shape);
  /// Throws where a tensor was never taken, but for those that `ignorable` tells by name.
  void require_all_taken(const std::function<bool(const std::string&)>& ignorable) const;

 private:
  struct File {
    std::string path;
    std::shared_ptr<const MappedFile> map;
  };
  struct Slot {
    SafetensorsEntry entry;
    size_t file = 0;
    bool taken = false;
  };
  void add_file(const std::string& path);
  void add_shards(const std::string& index_path);

  std::string folder_;
  std::vector<File> files_;
  std::map<std::string, Slot> tensors_;
};

}  // namespace nanovllm
