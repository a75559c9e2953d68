#include "apps/batch/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>

#include "apps/batch/line_stream.h"
#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

uint64_t hash_of(std::string_view bytes) { return std::hash<std::string_view>()(bytes) | 1; }

uint64_t hash_of(std::span<const int32_t> ids) {
  return hash_of({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

uint64_t hash_of_fields(const Json& object) {
  Json fields = Json::array();
  for (const char* name : {"id", "custom_id"}) fields.push_back(object.value(name, Json()));
  return hash_of(dump_json(fields));
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(path),
      file_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666)) {
  require(file_.get() >= 0, "{}: {}", path, std::strerror(errno));
  struct stat status {};
  require(::fstat(file_.get(), &status) == 0, "{}: {}", path, std::strerror(errno));
  is_regular_ = S_ISREG(status.st_mode);
  if (!is_regular_) return;
  require(::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
          "{}: another process is writing its results to this file", path);
  read_held();
}

void OutputFile::read_held() {
  LineStream lines(path_);
  for (int64_t number = 1;; ++number) {
    const int64_t begin = lines.offset();
    const auto line = lines.next(/*wait_ms=*/-1);
    if (!line) break;
    if (lines.had_newline()) {
      if (!is_blank(*line)) add_held(*line, number);
      continue;
    }
    // A line without its end. It is removed only if it is what this program would have written.
    require(line->starts_with(kResultStart) || kResultStart.starts_with(*line),
            "{}: line {} is not a result of 'nanovllm generate'; give another --output", path_,
            number);
    require(::ftruncate(file_.get(), begin) == 0, "{}: {}", path_, std::strerror(errno));
    break;
  }
  size_ = ::lseek(file_.get(), 0, SEEK_END);
}

void OutputFile::add_held(const std::string& line, int64_t line_number) {
  const std::string where = fmt::format("{}: line {}", path_, line_number);
  try {
    const Json result = parse_json(line, where);
    const int64_t index = result.at("index").get<int64_t>();
    Held& held = held_[index];
    held.ids_hash = 0;
    if (const auto ids = result.find("prompt_token_ids"); ids != result.end())
      held.ids_hash = hash_of(ids->get<std::vector<int32_t>>());
    held.fields_hash = hash_of_fields(result);
    held.outcome = outcome_of(result);
  } catch (const std::exception&) {
    fail("{} is not a result of 'nanovllm generate'; give another --output", where);
  }
}

bool OutputFile::holds(int64_t index, const Prompt& prompt) const {
  const auto at = held_.find(index);
  if (at == held_.end()) return false;
  const Held& held = at->second;
  const bool is_refused = !prompt.error.empty();
  const bool is_same = held.fields_hash == hash_of_fields(prompt.passed) &&
                       (held.ids_hash == 0 || is_refused ||
                        held.ids_hash == hash_of(std::span<const int32_t>(prompt.token_ids)));
  require(is_same,
          "{}: the result with index {} is that of another prompt; give the prompts and options "
          "that the file was written with, or another --output",
          path_, index);
  return held.ids_hash != 0 || is_refused;
}

int64_t OutputFile::num_results() const {
  return std::ranges::count_if(held_, [](const auto& item) { return item.second.ids_hash != 0; });
}

void OutputFile::append(std::string_view line) {
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(file_.get(), rest.data(), rest.size());
    if (n >= 0) {
      rest.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    const int error = errno;
    // If this fails too, the next run removes the half line.
    if (is_regular_ && ::ftruncate(file_.get(), size_) != 0) errno = error;
    throw std::runtime_error(fmt::format("cannot write to {}: {}", path_, std::strerror(error)));
  }
  size_ += static_cast<int64_t>(line.size());
}

}  // namespace nanovllm
