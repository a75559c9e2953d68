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
#include "nanovllm/checkpoint/tensor_source.h"

namespace nanovllm {

/// Number of files and tensors of a checkpoint, and the bytes of the files.
struct CheckpointSize {
  size_t num_files = 0, num_tensors = 0, bytes = 0;
};

/// All weights of a checkpoint folder: model.safetensors, or the files that
/// model.safetensors.index.json lists. Every error is a UserError that names file and tensor. Only
/// one thread at a time may use it; the WeightRows that it returns may be read by any thread.
class Checkpoint : public TensorSource {
 public:
  explicit Checkpoint(const std::string& folder);

  bool has(const std::string& name) const override { return tensors_.contains(name); }
  /// Takes a tensor, which can be read even after the Checkpoint is destroyed.
  WeightRows take(const std::string& name, const std::vector<int64_t>& shape,
                  std::initializer_list<DType> dtypes = {DType::kBF16, DType::kF16,
                                                         DType::kF32}) override;
  /// Throws if a tensor was never taken, unless `ignorable` returns true for its name, or it is a
  /// bias of zeros: some exporters write one for every projection.
  void require_all_taken(const std::function<bool(const std::string&)>& ignorable) const;
  /// Throws if a file was written to since it was opened, because the tensors that were read may be
  /// a mixture of the old and the new contents.
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
