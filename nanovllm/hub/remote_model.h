#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/hub/checksum.h"

namespace nanovllm::hub {

/// A file of a model on the hub.
struct RemoteFile {
  std::string name;  ///< the path in the model's folder
  uint64_t size = 0;
  std::string digits;  ///< the digits of its checksum, which are its blob's name in the cache
  ChecksumKind kind = ChecksumKind::kGitBlob;
};

/// The hub's description of one revision of a model.
struct RemoteModel {
  std::string commit;
  std::vector<RemoteFile> files;  ///< all files; only those that are needed are checked

  /// The files that every use of the model needs, without its weights: configuration, tokenizer and
  /// chat template, and the index of the weights if they are in several files. Throws UserError if
  /// there is no config.json, and if one of them has no valid checksum or is too large.
  std::vector<RemoteFile> small_files(const std::string& id) const;
  /// Whether the weights are in the files that an index names, and not in one file.
  bool has_shards() const;
  /// The files of the weights: `shards`, or model.safetensors. Throws UserError if one is missing,
  /// and if there are only weights in other formats.
  std::vector<RemoteFile> weight_files(const std::string& id,
                                       const std::set<std::string>& shards) const;
};

/// Whether this program uses a file of this name.
bool is_model_file(std::string_view name);

constexpr const char* kSingleWeights = "model.safetensors";
constexpr const char* kWeightsIndex = "model.safetensors.index.json";

/// Reads the answer of the hub's API to /api/models/ID/revision/REVISION?blobs=true. Throws
/// std::runtime_error that names `where` if it is not one.
RemoteModel parse_remote_model(std::string_view text, const std::string& where);

/// The files that an index of weights names. Each must be a safetensors file in the folder of the
/// index, so that no name leads to another folder or to a file that could contain code. Throws
/// UserError that names `where` if the index is not valid.
std::set<std::string> shards_of_index(std::string_view index, const std::string& where);

}  // namespace nanovllm::hub
