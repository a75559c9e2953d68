// What is written to stderr for each request.
#include "nanovllm/server/http/access_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/terminal/logging.h"

namespace nanovllm::server {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class FakeReply : public HttpReply {
 public:
  explicit FakeReply(int status) : status_(status) {}
  Task<> send(int, std::string_view, std::string, const HttpHeaders&) override { co_return; }
  Task<> begin_events() override { co_return; }
  void add_event(std::string_view, std::string_view) override {}
  void add_comment() override {}
  bool has_events() const override { return false; }
  Task<> flush() override { co_return; }
  Task<> end_events() override { co_return; }
  void on_gone(std::function<void()>) override {}
  int status() const override { return status_; }

 private:
  const int status_;
};

HttpRequest request_for(std::string path) {
  HttpRequest request;
  request.method = "POST";
  request.path = std::move(path);
  request.id = "req-1";
  return request;
}

std::string written(const AccessLog& log, const HttpRequest& request, const HttpReply& reply,
                    bool is_gone = false) {
  ::testing::internal::CaptureStderr();
  log.write(request, reply, steady_seconds(), is_gone);
  return ::testing::internal::GetCapturedStderr();
}

TEST(AccessLogs, HaveOneLineWithTokensTimesAndTheEnd) {
  FakeReply reply(200);
  reply.record = {12, 8, 40, steady_seconds() + 1, "length"};
  EXPECT_THAT(written(AccessLog(), request_for("/v1/completions"), reply),
              MatchesRegex("info: req-1 POST /v1/completions 200 prompt_tokens=12 cached_tokens=8 "
                           "generated_tokens=40 first_token=[0-9.]+s total=[0-9.]+s end=length\n"));
  EXPECT_THAT(written(AccessLog(), request_for("/health"), FakeReply(200)),
              MatchesRegex("info: req-1 POST /health 200 total=[0-9.]+s\n"));
}

TEST(AccessLogs, SayWhyARequestGotNoAnswer) {
  for (const int status : {404, 429, 503})
    EXPECT_THAT(written(AccessLog(), request_for("/"), FakeReply(status)),
                HasSubstr(" end=refused\n"));
  EXPECT_THAT(written(AccessLog(), request_for("/"), FakeReply(500)), HasSubstr(" end=error\n"));
  EXPECT_THAT(written(AccessLog(), request_for("/"), FakeReply(200), /*is_gone=*/true),
              HasSubstr(" 200 total=0.0000s end=client_gone\n"));
  EXPECT_THAT(written(AccessLog(), request_for("/"), FakeReply(0), /*is_gone=*/true),
              HasSubstr(" 499 "));
}

TEST(AccessLogs, NoTextOfAClientBreaksALine) {
  HttpRequest request = request_for(std::string("/a\n\r\x1b[31m \xe2\x80\xae\xff\0b", 16));
  EXPECT_THAT(written(AccessLog(), request, FakeReply(404)),
              HasSubstr(" POST /a%0A%0D%1B[31m%20%E2%80%AE%FF%00b 404 "));
  request.path = "/" + std::string(100000, 'a');
  const std::string line = written(AccessLog(), request, FakeReply(404));
  EXPECT_LT(line.size(), 300u);
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
}

TEST(AccessLogs, AreOffOrLeaveOutSomePaths) {
  EXPECT_EQ(written(AccessLog(false), request_for("/"), FakeReply(200)), "");
  const AccessLog quiet(true, {"/health", "/metrics"});
  EXPECT_EQ(written(quiet, request_for("/health"), FakeReply(200)), "");
  EXPECT_NE(written(quiet, request_for("/healthy"), FakeReply(200)), "");
}

/// Replaces stderr by another descriptor, and restores it.
class StderrIs {
 public:
  explicit StderrIs(int fd) : saved_(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  StderrIs(const StderrIs&) = delete;
  ~StderrIs() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }

 private:
  const int saved_;
};

TEST(Log, DoesNotWaitForAReaderAndSaysHowManyLinesWereLost) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string text(1000, 'a');
  std::string read(1 << 20, '\0');
  {
    const StderrIs pipe(ends[1]);
    for (int i = 0; i < 1000; ++i) log().info("{}", text);  // a pipe has 64 KiB
    read.resize(static_cast<size_t>(::read(ends[0], read.data(), read.size())));
    log().info("again");
  }
  std::string rest(1000, '\0');
  rest.resize(static_cast<size_t>(::read(ends[0], rest.data(), rest.size())));
  const auto num_read = std::ranges::count(read, '\n');
  EXPECT_EQ(rest, "warning: " + std::to_string(1000 - num_read) +
                      " lines of the log were lost\ninfo: again\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Log, CompletesALineThatWasWrittenInPart) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string line = "info: " + std::string(20000, 'a') + "\n";  // not written at once
  std::string read(1 << 20, '\0');
  const auto read_some = [&] {
    return read.substr(0, static_cast<size_t>(::read(ends[0], read.data(), read.size())));
  };
  std::string first;
  {
    const StderrIs pipe(ends[1]);
    for (int i = 0; i < 10; ++i) log().info("{}", std::string(20000, 'a'));
    first = read_some();
    log().info("again");
  }
  const auto num_begun = static_cast<int64_t>((first.size() + line.size() - 1) / line.size());
  EXPECT_NE(first.size() % line.size(), 0u);
  std::string expected;
  for (int64_t i = 0; i < num_begun; ++i) expected += line;
  expected += fmt::format("warning: {} lines of the log were lost\ninfo: again\n", 10 - num_begun);
  EXPECT_EQ(first + read_some(), expected);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Log, SurvivesAFullDiskAndAClosedPipe) {
  if (const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC); full >= 0) {
    const StderrIs disk(full);
    log().info("lost");
    ::close(full);
  }
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  {
    const auto before = std::signal(SIGPIPE, SIG_IGN);  // as the binary does
    const StderrIs closed(ends[1]);
    log().info("lost");
    std::signal(SIGPIPE, before);
  }
  ::close(ends[1]);
  ::testing::internal::CaptureStderr();
  log().info("written");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex("warning: [0-9]+ lines of the log were lost\ninfo: written\n"));
}

}  // namespace
}  // namespace nanovllm::server
