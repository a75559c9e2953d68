#include "nanovllm/server/server.h"

#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/front/async_engine.h"
#include "nanovllm/server/api.h"
#include "nanovllm/server/http/connection.h"
#include "nanovllm/server/http/host.h"
#include "nanovllm/server/http/unix_socket.h"
#include "nanovllm/server/out_of_memory.h"

namespace nanovllm::server {

using asio::ip::tcp;
using Protocol = asio::generic::stream_protocol;

namespace {

/// While the server waits for running requests to end, it looks this often whether they have.
constexpr std::chrono::milliseconds kDrainTick{20};
/// The pause before the next connection is accepted, if one could not be accepted.
constexpr std::chrono::milliseconds kAcceptPause{20};
/// The I/O thread waits this long for memory that others may free; all clients wait with it.
constexpr std::chrono::milliseconds kIoPatience{200};
/// The least files that the process opens while it loads a model, and those that it may open later.
constexpr size_t kFilesToLoad = 32, kSpareFiles = 16;
constexpr size_t kLeastConnections = 8, kMostConnections = 16384;
/// When the engine has ended, requests that still run have this long to receive their error.
constexpr double kSecondsToReport = 2;

std::string url_of(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("http://[{}]:{}", host, port)
                 : fmt::format("http://{}:{}", host, port);
}

class Server {
 public:
  Server(const std::string& model, const EngineConfig& config, const ServerOptions& options)
      : options_(options),
        model_(model),
        config_(config),
        access_log_(options.access_log, options.quiet_paths),
        api_(io_, model, options),
        acceptor_(io_),
        signals_(io_, SIGINT, SIGTERM) {
    const size_t open = num_open_files(), least = open + kFilesToLoad + kLeastConnections;
    require(most_files_ >= least,
            "this process may have {} files open (ulimit -Hn), and a server needs at least {}",
            most_files_, least);
    // Loading a model may take more files than it needs at the end.
    const size_t room = most_files_ - open;
    num_connections_allowed_ = std::min({kMostConnections, room / 4, room - kFilesToLoad});
    listen();
  }

  int run() {
    asio::co_spawn(io_, accept(), asio::detached);
    asio::co_spawn(io_, wait_for_signals(), asio::detached);
    std::thread io_thread([&] {
      ::pthread_setname_np(::pthread_self(), "io");
      set_patience(kIoPatience);
      run_io();
    });
    std::exception_ptr failure;
    try {
      load_and_step();
    } catch (...) {
      failure = std::current_exception();
    }
    asio::post(io_, [&] { io_.stop(); });
    io_thread.join();
    if (failure) std::rethrow_exception(failure);
    return status_;
  }

 private:
  /// Runs the I/O thread. A handler that throws, for example because no memory is left, ends only
  /// its own connection or request.
  void run_io() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::exception& e) {
        log().error("on the I/O thread: {}", what_of(e));
      }
    }
  }

  void listen() {
    std::string where = url_of(options_.host, options_.port);
    std::vector<std::string> hosts = options_.allowed_hosts;
    bool is_local = false;
    try {
      if (options_.uds.empty()) {
        const tcp::endpoint endpoint = resolve();
        is_local = is_loopback(endpoint.address().to_string());
        if (is_local && !is_loopback(options_.host)) hosts.push_back(options_.host);
        acceptor_.open(endpoint.protocol());
        acceptor_.set_option(asio::socket_base::reuse_address(true));
        acceptor_.bind(endpoint);
        acceptor_.listen();
        // The port has the same place in the addresses of IPv4 and IPv6.
        sockaddr_in address{};
        const Protocol::endpoint bound = acceptor_.local_endpoint();
        std::memcpy(&address, bound.data(), sizeof address);
        where = url_of(options_.host, ntohs(address.sin_port));
      } else {
        where = "unix:" + options_.uds;
        socket_file_.emplace(options_.uds, acceptor_);
      }
    } catch (const boost::system::system_error& error) {
      fail("cannot listen on {}: {}", where, error.code().message());
    }
    hosts_.emplace(hosts, is_local);
    log().info("listening on {}", where);
    if (!options_.note.empty()) log().info("{}", options_.note);
  }

  tcp::endpoint resolve() {
    tcp::resolver resolver(io_);
    return resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive)
        .begin()
        ->endpoint();
  }

  /// Ends the process without waiting for anybody.
  [[noreturn]] void leave(int status) {
    if (socket_file_) socket_file_->remove();
    ::_exit(status);
  }

  /// Runs the main thread, which is the engine's.
  void load_and_step() {
    // The engine is constructed in place, because its parts refer to each other.
    AsyncEngine engine(std::unique_ptr<LLMEngine>(new LLMEngine(LLMEngine::load(model_, config_))));
    std::promise<void> is_set;
    asio::post(io_, [&] {
      try {
        allow_connections();
        api_.set_engine(engine);  // the last call that may throw, so nothing uses the engine then
        is_set.set_value();
      } catch (...) {
        is_set.set_exception(std::current_exception());
      }
    });
    is_set.get_future().get();
    log().info("up to {} connections", num_connections_allowed_);
    log().info("{} is ready", api_.model_name());
    engine.run();
    // Either the drain has ended or the engine has failed.
    std::string why;
    try {
      engine.require_alive();
    } catch (const EngineDead& dead) {
      why = dead.what();
    }
    std::promise<void> is_over;
    asio::post(io_, [&] { asio::co_spawn(io_, end(why, is_over), asio::detached); });
    is_over.get_future().wait();
  }

  /// Allows as many connections as there are free files, now that it is known how many files the
  /// engine has open.
  void allow_connections() {
    const size_t open = std::max(num_open_files(), num_connections_);
    const size_t others = open - num_connections_ + kSpareFiles;
    require(most_files_ >= others + kLeastConnections,
            "this process may have {} files open (ulimit -Hn), and needs at least {}", most_files_,
            others + kLeastConnections);
    num_connections_allowed_ = std::min(kMostConnections, most_files_ - others);
  }

  Task<> end(std::string why, std::promise<void>& is_over) {
    if (!api_.is_draining()) {
      status_ = 1;
      log().error("{}", why);
    }
    api_.set_dead();
    co_await wait_for_requests(kSecondsToReport);
    // A client that reads nothing must not keep the process alive.
    if (api_.num_requests() > 0) leave(status_);
    api_.unset_engine();
    is_over.set_value();
  }

  Task<> wait_for_requests(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    asio::steady_timer timer(io_);
    while (api_.num_requests() > 0 && std::chrono::steady_clock::now() < end) {
      timer.expires_after(kDrainTick);
      co_await timer.async_wait(asio::use_awaitable);
    }
  }

  Task<> wait_for_signals() {
    const int number = co_await signals_.async_wait(asio::use_awaitable);
    if (!api_.has_engine()) leave(128 + number);
    log().info("shutting down: no new requests; {} run", api_.num_requests());
    api_.set_draining();
    asio::co_spawn(
        io_,
        [this]() -> Task<> {
          co_await wait_for_requests(options_.shutdown_timeout);
          api_.stop_engine();
        },
        asio::detached);
    const int second = co_await signals_.async_wait(asio::use_awaitable);
    leave(128 + second);
  }

  Task<> accept() {
    for (;;) {
      try {
        // Further connections wait in the kernel until one has ended.
        if (num_connections_ < num_connections_allowed_) co_await accept_one();
        else co_await pause();
      } catch (const std::exception& e) {
        log().error("cannot accept a connection: {}", what_of(e));
      }
    }
  }

  Task<> accept_one() {
    error_code error;
    Protocol::socket socket(io_);
    co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
    if (error) {  // no file descriptor is free, for example
      co_await pause();
      co_return;
    }
    socket.set_option(tcp::no_delay(true), error);
    asio::co_spawn(io_, serve_connection(std::move(socket), http_),
                   [this](const std::exception_ptr& failure) {
                     --num_connections_;
                     if (failure) try {
                         std::rethrow_exception(failure);
                       } catch (const std::exception& e) {
                         log().error("a connection ended: {}", e.what());
                       }
                   });
    ++num_connections_;
  }

  Task<> pause() {
    asio::steady_timer timer(io_, kAcceptPause);
    co_await timer.async_wait(asio::use_awaitable);
  }

  const ServerOptions& options_;
  const std::string& model_;
  const EngineConfig& config_;
  const AccessLog access_log_;
  HttpService http_{
      .handler = [this](HttpRequest& request,
                        HttpReply& reply) { return api_.handle(request, reply); },
      .admit =
          [this](const HttpRequest& request) {
            hosts_->check(request);
            return api_.admit(request);
          },
      .more_headers = [this](const HttpRequest& request) { return api_.more_headers(request); },
      .access_log = &access_log_};
  // io_ is the last member: its destructor destroys the suspended connections, which use the
  // others.
  asio::io_context io_{1};
  Api api_;
  asio::basic_socket_acceptor<Protocol> acceptor_;
  std::optional<UnixSocketFile> socket_file_;
  asio::signal_set signals_;
  std::optional<AllowedHosts> hosts_;
  const size_t most_files_ = raise_open_files_limit();
  size_t num_connections_ = 0, num_connections_allowed_ = 0;
  int status_ = 0;
};

}  // namespace

int run_server(const std::string& model, const EngineConfig& config, const ServerOptions& options) {
  require(options.port >= 0 && options.port <= 65535, "port is {}; it must be from 0 to 65535",
          options.port);
  require(options.max_queued_requests >= 0, "max_queued_requests is {}; it must be at least 0",
          options.max_queued_requests);
  constexpr int64_t kMostResponses = 10'000;
  require(options.max_stored_responses >= 0 && options.max_stored_responses <= kMostResponses,
          "max_stored_responses is {}; it must be from 0 to {}", options.max_stored_responses,
          kMostResponses);
  constexpr double kLongestKeepalive = 86'400;
  require(options.sse_keepalive >= 0 && options.sse_keepalive <= kLongestKeepalive,
          "sse_keepalive is {}; it must be from 0 to {}", options.sse_keepalive, kLongestKeepalive);
  require(options.shutdown_timeout >= 0, "shutdown_timeout is {}; it must be at least 0",
          options.shutdown_timeout);
  wait_for_memory();
  return Server(model, config, options).run();
}

}  // namespace nanovllm::server
