#include <algorithm>
#include <set>
#include <string>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/ops/cuda/backend/cuda_backend.h"
#include "nanovllm/ops/cuda/tuning/shape_bucket.h"

// What CudaBackend does before the first step, so that requests do not wait for it: it chooses how
// each GEMM is computed, loads the code of the kernels, and captures graphs. The kernels that only
// few requests need (copies of blocks, log-probabilities of prompts) are loaded when they are used.
namespace nanovllm::cuda {

namespace {

/// How long the choices are measured, in seconds for each byte of weights: as long as reading them
/// from a fast disk takes, and some more. What is not measured then uses the cost model, until a
/// later process measures it.
constexpr double kSeconds = 0.4, kSecondsPerByte = 1.0 / 16e9;

/// Lengths for which attention uses other kernels, and so other graphs. For equal lengths
/// decode_cluster_size() changes above 2048 keys. It is 0 for very different lengths, and always
/// above 20,000 keys.
constexpr int64_t kFewKeys = 64, kManyKeys = 4096, kMostKeys = 32768;
/// With more tokens, neither such lengths nor filters make a difference for the other kernels.
constexpr int64_t kFewDecoding = 64;

}  // namespace

ChoiceFile CudaBackend::choice_file(const ChoiceCache& cache) const {
  int driver = 0, runtime = 0;
  cuda_check(cudaDriverGetVersion(&driver), "driver");
  cuda_check(cudaRuntimeGetVersion(&runtime), "runtime");
  std::string driver_name;
  try {
    driver_name = read_file_if_there("/sys/module/nvidia/version", kMaxConfigBytes).value_or("");
  } catch (const UserError&) {  // the number above is enough
  }
  std::erase(driver_name, '\n');
  std::string limits = device_.portable() ? ", portable" : "";
  if (!gemms_.may_split_k()) limits += ", no split-K";
  return {cache.folder,
          fmt::format("{}, compute capability {}.{}, {} multiprocessors\ndriver {} {}, CUDA {}, "
                      "cuBLASLt {}\nbuild {:016x}{}, ranks {}",
                      device_.properties.name, device_.properties.major, device_.properties.minor,
                      device_.where.num_sms, driver, driver_name, runtime,
                      gemms_.cublaslt_version(), cache.build, limits, device_.rank.world)};
}

std::string CudaBackend::describe_cache(const ChoiceCache& cache) const {
  const ContextScope here(device_.context);
  const ChoiceFile file = choice_file(cache);
  std::string text = "off";
  if (!file.path().empty())
    text = fmt::format("{} choices of kernels in {}", std::ranges::count(file.read(), '\n'),
                       file.path());
  // Requests have waited for these, which a test says do not exist.
  const int64_t late = gemms_.autotuner().choices().num_set() - num_chosen_at_start_;
  if (num_chosen_at_start_ >= 0 && late > 0) text += fmt::format("; {} after the start", late);
  return text;
}

void CudaBackend::prepare(const Warmup& warmup, const ChoiceCache& cache) {
  const ContextScope here(device_.context);
  const double start = steady_seconds();
  prepare_kernels(warmup, cache);
  const double prepared = steady_seconds();
  graphs_.only_capture(true);
  int64_t previous = 0;  // size
  for (const int64_t size : warmup.graph_sizes) {
    const int64_t most_padding = size - previous - 1;
    for (const bool has_filters : {false, true})
      for (WarmupStep step : {WarmupStep{.num_keys = kFewKeys},
                              WarmupStep{.num_keys = kFewKeys, .num_padding = most_padding},
                              WarmupStep{.num_keys = kManyKeys},
                              WarmupStep{.num_keys = kMostKeys, .has_equal_keys = false}}) {
        step.num_tokens = size;
        step.has_filters = has_filters;
        step.replays = true;
        warmup.run(step);
      }
    previous = size;
  }
  graphs_.only_capture(false);
  num_chosen_at_start_ = gemms_.autotuner().choices().num_set();
  log().debug("prepared {} GEMMs in {:.2f} s and {} graphs in {:.2f} s",
              gemms_.autotuner().choices().num_measured(), prepared - start, graphs_.count(),
              steady_seconds() - prepared);
}

void CudaBackend::prepare_kernels(const Warmup& warmup, const ChoiceCache& cache) {
  Autotuner& tuner = gemms_.autotuner();
  GemmChoices& choices = tuner.choices();
  const bool is_first = !collectives_ || collectives_->ranks().rank().index == 0;
  const ChoiceFile file = choice_file(is_first ? cache : ChoiceCache());
  const auto add_file = [&] {
    try {
      choices.add_text(file.read());
    } catch (const UserError& error) {
      log().warn("the cache of kernel choices is ignored: {}: {}", file.path(), error.what());
    }
  };
  add_file();
  share_choices();
  const std::string known = choices.to_text();
  const double end =
      steady_seconds() + kSeconds + kSecondsPerByte * static_cast<double>(warmup.weight_bytes);
  std::set sizes = bucket_sizes(warmup.max_tokens);
  sizes.insert(warmup.max_seqs);  // the most rows of logits, which may be within a bucket
  // Ranks that share the rows of a sum also multiply a share of them (add_matmul()).
  for (const int64_t size : bucket_sizes(warmup.max_tokens))
    if (size * device_.rank.world <= warmup.max_tokens) sizes.insert(size * device_.rank.world);
  const auto run = [&](int64_t num_tokens) {
    warmup.run({.num_tokens = num_tokens, .num_keys = kFewKeys, .has_filters = true});
    if (num_tokens <= kFewDecoding)
      warmup.run({.num_tokens = num_tokens, .num_keys = kMostKeys, .has_equal_keys = false});
  };
  const auto measure = [&](int64_t num_tokens) {
    int64_t has_time = steady_seconds() < end ? 1 : 0;
    if (collectives_) has_time = collectives_->ranks().smallest(has_time);
    tuner.set_measuring(has_time != 0);
    has_shared_rows_ = false;
    run(num_tokens);
    return has_shared_rows_;
  };
  bool shared_before = false;
  for (const int64_t num_tokens : sizes) {
    const bool shares = measure(num_tokens);
    // With one token more a rank would have a share of its own, which no other size here has.
    if (shared_before && !shares) {
      sizes.insert(num_tokens + 1);
      measure(num_tokens + 1);
    }
    shared_before = shares;
  }
  tuner.set_measuring(false);
  share_choices();
  // Loads the code of what only other ranks have run. The capture does so for fewer tokens.
  const int64_t captured = warmup.graph_sizes.empty() ? 0 : warmup.graph_sizes.back();
  if (collectives_)
    for (const int64_t num_tokens : sizes)
      if (num_tokens > captured) run(num_tokens);
  if (!is_first || choices.to_text() == known) return;
  add_file();  // another process may have written it in the meantime
  file.write(choices.to_text());
}

void CudaBackend::share_choices() {
  if (!collectives_) return;
  Communicator& ranks = collectives_->ranks();
  GemmChoices& choices = gemms_.autotuner().choices();
  std::string mine = choices.to_text();
  const auto size = static_cast<size_t>(-ranks.smallest(-static_cast<int64_t>(mine.size())));
  if (size == 0) return;
  mine.resize(size, '\0');
  std::string all(size * static_cast<size_t>(ranks.rank().world), '\0');
  ranks.all_gather(mine.data(), size, all.data());
  choices.forget_measured();
  for (size_t first = 0; first < all.size(); first += size) {
    const std::string text = all.substr(first, size);
    choices.add_text(text.substr(0, text.find('\0')));  // without the zeros at the end
  }
}

}  // namespace nanovllm::cuda
