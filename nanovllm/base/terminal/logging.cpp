#include "nanovllm/base/terminal/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

namespace {

/// Writes the message with escape_controls(), because it may contain texts from files and options.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text = escape_controls({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>();
  }
};

}  // namespace

spdlog::logger& log() {
  static spdlog::logger logger = [] {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<EscapedMessage>('*').set_pattern("%l: %*");
    spdlog::logger made("nanovllm", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_formatter(std::move(formatter));
    return made;
  }();
  return logger;
}

}  // namespace nanovllm
