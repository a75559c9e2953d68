#include "apps/batch/batch_run.h"

#include <fmt/format.h>

#include <utility>

#include "apps/commands.h"
#include "apps/terminal.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

// The most tokens of all prompts in the engine. The limit matters only for prompts of many thousand
// tokens, of which no cache holds this many.
constexpr size_t kMaxRunningTokens = size_t{1} << 24;
// The most bytes of results that wait for an earlier result.
constexpr size_t kMaxWaitingBytes = size_t{1} << 28;
// The most lines that are read between two steps, so that lines that need no step, such as refused
// ones, do not keep others waiting.
constexpr int kLinesPerStep = 4096;
// How long an idle engine waits for input before it looks whether Ctrl-C was pressed just before.
constexpr int kIdleMs = 200;

std::string to_text(const Prompt& prompt, const RequestOutput& output) {
  std::string text = "\nPrompt: ";
  if (prompt.text.empty() && !output.prompt_token_ids.empty())
    text += fmt::format("[{}]\n", fmt::join(output.prompt_token_ids, ", "));
  else text += repr(prompt.text) + "\n";
  for (const CompletionOutput& answer : output.outputs) {
    text += "Completion: " + repr(answer.text) + "\n";
    if (!answer.error.empty()) text += "Error: " + escape_controls(answer.error) + "\n";
  }
  return text;
}

}  // namespace

BatchRun::BatchRun(LLMEngine& engine, const PromptReader& reader, LineStream* lines,
                   std::vector<std::string> texts, const Options& options)
    : engine_(engine),
      reader_(reader),
      lines_(lines),
      texts_(std::move(texts)),
      options_(options),
      order_(options.ordered, [this](const std::string& result) { write(result); }) {
  // There is no bar where the user types the prompts, since it would be drawn over them.
  const bool is_typed = lines != nullptr && lines->is_terminal();
  if (options.quiet || !stderr_is_terminal() || is_typed) return;
  const std::optional<int64_t> total = texts_.size();
  bar_.emplace("Generating", lines == nullptr ? total : std::nullopt, true);
}

int BatchRun::run() {
  try {
    run_all();
  } catch (const EngineDead&) {
    flush();
    throw;
  }
  flush();
  bar_.reset();
  return summary();
}

void BatchRun::flush() {
  order_.flush();
  if (options_.file != nullptr) options_.file->sync();
}

void BatchRun::run_all() {
  while (!InterruptGuard::interrupted()) {
    const bool idle = engine_.is_finished();
    if (idle && at_end()) return;
    read_ahead(idle ? kIdleMs : 0);
    if (!engine_.is_finished())
      for (RequestUpdate& update : engine_.step()) {
        if (!update.finished) continue;
        const auto at = running_.find(update.request_id);
        num_running_tokens_ -= at->second.num_tokens;
        finish(at->second, *update.finished);
        running_.erase(at);
      }
    show_progress();
  }
}

/// Reads lines ahead. Waits at most `wait_ms` for the first one.
void BatchRun::read_ahead(int wait_ms) {
  for (int i = 0; i < kLinesPerStep && wants_more() && !InterruptGuard::interrupted(); ++i)
    if (!take_line(std::exchange(wait_ms, 0))) return;
}

bool BatchRun::wants_more() const {
  return engine_.stats().num_waiting < engine_.setup().config.max_num_seqs &&
         num_running_tokens_ < kMaxRunningTokens && order_.num_waiting_bytes() < kMaxWaitingBytes;
}

bool BatchRun::at_end() const {
  if (lines_ == nullptr) return static_cast<size_t>(num_prompts_) == texts_.size();
  return lines_->at_end() || !input_error_.empty();
}

/// Submits the next prompt. Returns false if there is none yet.
bool BatchRun::take_line(int wait_ms) {
  if (at_end()) return false;
  if (lines_ == nullptr) {
    submit(reader_.from_text(texts_[static_cast<size_t>(num_prompts_)]));
    return true;
  }
  std::optional<std::string> line;
  try {
    line = lines_->next(wait_ms);
  } catch (const UserError& e) {
    input_error_ = e.what();
  }
  if (!line) return false;
  ++num_lines_;
  if (is_blank(*line)) return true;
  if (options_.openai != nullptr) submit(options_.openai->read(*line, num_lines_));
  else submit(reader_.from_line(*line, num_lines_));
  return true;
}

void BatchRun::submit(Prompt prompt) {
  const int64_t index = num_prompts_++;
  used_template_ = used_template_ || prompt.from_messages;
  if (!prompt.warning.empty() && !std::exchange(has_warned_, true)) {
    if (bar_) bar_->hide();
    fmt::print(stderr, "warning: {}\n", escape_controls(prompt.warning));
  }
  if (skip(index, key_of(prompt))) return;
  if (!prompt.error.empty()) return refuse(index, prompt);
  const size_t num_tokens = prompt.token_ids.size();
  try {
    const uint64_t id = engine_.add(request_of(*engine_.request_factory(), prompt));
    num_running_tokens_ += num_tokens;
    prompt.token_ids = {};  // the engine has copied them
    running_.emplace(
        id, Running{.index = index, .num_tokens = num_tokens, .prompt = std::move(prompt)});
  } catch (const UserError& e) {
    RequestOutput output;
    output.finish_reason = "error";
    refusal_ = output.error = e.what();
    output.prompt_token_ids = std::move(prompt.token_ids);
    output.outputs.push_back(output);
    finish(index, prompt, output);
  }
}

void BatchRun::submit(BatchRequest request) {
  const int64_t index = num_prompts_++;
  if (skip(index, request.key())) return;
  if (request.num_left == 0) return finish(index, request);
  const auto shared = std::make_shared<BatchRequest>(std::move(request));
  for (size_t i = 0; i < shared->generation.requests.size(); ++i) {
    NewRequest& made = shared->generation.requests[i];
    const auto num_tokens = static_cast<size_t>(made.choices.front()->num_prompt_tokens);
    num_running_tokens_ += num_tokens;
    running_.emplace(
        engine_.add(std::move(made)),
        Running{
            .index = index, .num_tokens = num_tokens, .prompt = {}, .request = shared, .place = i});
  }
}

bool BatchRun::skip(int64_t index, const ResultKey& key) {
  if (options_.file == nullptr || !options_.file->holds(index, key)) return false;
  ++num_held_;
  count(options_.file->outcome(index));
  order_.add(index, "");
  return true;
}

void BatchRun::finish(Running& running, RequestOutput& output) {
  if (running.request == nullptr) finish(running.index, running.prompt, output);
  else if (OpenAiBatch::add(*running.request, running.place, std::move(output)))
    finish(running.index, *running.request);
}

void BatchRun::finish(int64_t index, BatchRequest& request) {
  const Outcome outcome = OpenAiBatch::outcome_of(request);
  count(outcome);
  order_.add(index, OpenAiBatch::result(request, index));
}

void BatchRun::finish(int64_t index, const Prompt& prompt, RequestOutput& output) {
  count(outcome_of(output));
  order_.add(index, options_.json ? dump_json(to_json(output, index, prompt.passed)) + "\n"
                                  : to_text(prompt, output));
}

void BatchRun::refuse(int64_t index, const Prompt& prompt) {
  count(Outcome::kRefused);
  refusal_ = prompt.error;
  order_.add(index, options_.json ? dump_json(to_json(prompt.error, index, prompt.passed)) + "\n"
                                  : fmt::format("\nError: {}\n", escape_controls(prompt.error)));
}

void BatchRun::count(Outcome outcome) {
  ++num_done_;
  num_refused_ += outcome == Outcome::kRefused ? 1 : 0;
  num_failed_ += outcome == Outcome::kFailed ? 1 : 0;
}

void BatchRun::write(const std::string& result) {
  if (options_.file != nullptr) return options_.file->append(result);
  if (bar_) bar_->hide();
  print_out(result);
}

void BatchRun::show_progress() {
  if (!bar_) return;
  if (lines_ != nullptr) bar_->set_total(at_end() ? num_prompts_ : lines_->count_lines());
  const EngineStats stats = engine_.stats();
  bar_->update(num_done_, stats.prefill_tokens, stats.decode_tokens);
}

int BatchRun::summary() {
  if (InterruptGuard::interrupted()) {
    if (options_.file != nullptr && !options_.quiet)
      fmt::print(stderr, "interrupted: {} has {} results; the same command continues from there\n",
                 escape_controls(options_.file->path()), num_done_);
    return InterruptGuard::exit_status();
  }
  std::string text;
  if (num_refused_ == 1 && num_prompts_ == 1 && !options_.json) text = refusal_;
  else if (num_refused_ > 0)
    text = fmt::format("{} of {} prompts refused", num_refused_, num_prompts_);
  if (num_failed_ > 0)
    text += text.empty()
                ? fmt::format("{} of {} prompts ended with an error", num_failed_, num_prompts_)
                : fmt::format(", and {} ended with an error", num_failed_);
  if (!text.empty()) print_error(text);
  if (!input_error_.empty()) throw UserError(input_error_);
  return num_refused_ + num_failed_ == 0 ? kExitOk : kExitUserError;
}

}  // namespace nanovllm
