#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "apps/batch/line_stream.h"
#include "apps/batch/openai_batch.h"
#include "apps/batch/output_file.h"
#include "apps/batch/output_json.h"
#include "apps/batch/result_order.h"
#include "apps/prompts.h"
#include "nanovllm/base/terminal/progress.h"
#include "nanovllm/engine/llm_engine.h"

namespace nanovllm {

/// A run of `generate` over many prompts. Prompts are read, tokenized and submitted only as far
/// ahead as the engine can use them, and results are written as they finish, so a run needs no more
/// memory for a million prompts than for a thousand.
class BatchRun {
 public:
  struct Options {
    bool json = false;                    ///< results are JSON lines
    bool ordered = true;                  ///< results are in the order of the prompts
    bool quiet = false;                   ///< no progress bar, only errors on stderr
    OutputFile* file = nullptr;           ///< gets the results instead of stdout
    const OpenAiBatch* openai = nullptr;  ///< reads the lines and writes the results, if given
  };
  /// The prompts are `texts`, or the lines of `lines` if that is not null.
  BatchRun(LLMEngine& engine, const PromptReader& reader, LineStream* lines,
           std::vector<std::string> texts, const Options& options);
  /// Runs all prompts and returns the exit status. Throws what the engine throws, after writing the
  /// finished results.
  int run();
  /// Whether a prompt was made with the chat template.
  bool used_template() const { return used_template_; }

 private:
  struct Running {
    int64_t index = 0;
    size_t num_tokens = 0;
    Prompt prompt;
    std::shared_ptr<BatchRequest> request = {};  // for OpenAiBatch: the request with this prompt
    size_t place = 0;                            // index in request->outputs
  };
  void flush();
  void run_all();
  void read_ahead(int wait_ms);
  bool wants_more() const;
  bool at_end() const;
  bool take_line(int wait_ms);
  void submit(Prompt prompt);
  void submit(BatchRequest request);
  /// Whether the file already has the result of this prompt. Then its place in the order is filled.
  bool skip(int64_t index, const ResultKey& key);
  void finish(Running& running, RequestOutput& output);
  void finish(int64_t index, BatchRequest& request);
  void finish(int64_t index, const Prompt& prompt, RequestOutput& output);
  void refuse(int64_t index, const Prompt& prompt);
  void count(Outcome outcome);
  void write(const std::string& result);
  void show_progress();
  int summary();

  LLMEngine& engine_;
  const PromptReader& reader_;
  LineStream* lines_;
  std::vector<std::string> texts_;
  Options options_;
  std::optional<ProgressBar> bar_;  // none if no bar is shown
  ResultOrder order_;

  int64_t num_lines_ = 0;    // lines that were read, including blank ones
  int64_t num_prompts_ = 0;  // prompts that were read
  int64_t num_done_ = 0, num_held_ = 0, num_refused_ = 0, num_failed_ = 0;
  size_t num_running_tokens_ = 0;                  // tokens of all prompts in the engine
  std::unordered_map<uint64_t, Running> running_;  // prompts by the engine's number
  std::string input_error_;                        // why the rest of the input cannot be read
  std::string refusal_;                            // why the last refused prompt was refused
  bool used_template_ = false;
  bool has_warned_ = false;  // only the first line gets a warning: others are probably alike
};

}  // namespace nanovllm
