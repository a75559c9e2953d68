#include "nanovllm/server/http/access_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/terminal/logging.h"

namespace nanovllm::server {

namespace {

/// A text that a client has sent, as one word of printable ASCII that is not too long for a line.
std::string word(std::string_view text) {
  constexpr size_t kMostBytes = 200;
  std::string shown;
  for (const char c : text.substr(0, kMostBytes)) {
    if (c > ' ' && c < 127) shown += c;
    else shown += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  if (text.size() > kMostBytes) shown += "...";
  return shown.empty() ? "-" : shown;
}

/// nginx's status for a client that has disconnected before the response.
constexpr int kClientClosedRequest = 499;

}  // namespace

AccessLog::AccessLog(bool is_on, std::vector<std::string> quiet_paths)
    : is_on_(is_on), quiet_paths_(std::move(quiet_paths)) {}

void AccessLog::write(const HttpRequest& request, const HttpReply& reply, double start,
                      bool client_is_gone) const {
  if (!is_on_ || !log().should_log(spdlog::level::info)) return;
  if (std::ranges::count(quiet_paths_, request.path) > 0) return;
  const int status = reply.status() != 0 ? reply.status() : kClientClosedRequest;
  const GenerationRecord& made = reply.record;
  std::string line =
      fmt::format("{} {} {} {}", request.id, word(request.method), word(request.path), status);
  if (made.prompt_tokens > 0)
    line += fmt::format(" prompt_tokens={} cached_tokens={} generated_tokens={}",
                        made.prompt_tokens, made.cached_tokens, made.generated_tokens);
  if (made.first_token_time > 0)
    line += fmt::format(" first_token={:.4f}s", made.first_token_time - start);
  line += fmt::format(" total={:.4f}s", steady_seconds() - start);
  std::string_view end = made.end;
  if (client_is_gone) end = "client_gone";
  else if (status == 500) end = "error";
  else if (status >= 400) end = "refused";
  if (!end.empty()) line += fmt::format(" end={}", end);
  log().info("{}", line);
}

}  // namespace nanovllm::server
