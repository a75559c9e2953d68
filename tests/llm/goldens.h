#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/llm.h"

namespace nanovllm::testing {

inline const std::string kSource = NANOVLLM_SOURCE_DIR;
inline const std::string kTinyTales = kSource + "/models/tiny-tales";

inline std::string model_folder(const std::string& name) {
  return name == "tiny-tales" ? kTinyTales : kSource + "/tests/variants/" + name;
}

inline std::vector<Json> read_goldens(const std::string& path) {
  std::ifstream file(path);
  std::vector<Json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(parse_json(line, path));
  return rows;
}

/// Reference answers of transformers in float32; tests/goldens/README.md explains the fields.
inline std::vector<Json> goldens(const std::string& name) {
  return read_goldens(kSource + "/tests/goldens/" + name + ".jsonl");
}

inline SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 64;
  return params;
}

inline RequestOutput generate_one(LLM& llm, const std::vector<int32_t>& prompt,
                                  const SamplingParams& params) {
  return llm.generate(std::vector<std::vector<int32_t>>{prompt}, params, false).at(0);
}

}  // namespace nanovllm::testing
