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
#include "nanovllm/engine/async_engine.h"
#include "nanovllm/server/api.h"
#include "nanovllm/server/http/connection.h"
#include "nanovllm/server/http/unix_socket.h"

namespace nanovllm::server {

using asio::ip::tcp;
using Protocol = asio::generic::stream_protocol;

namespace {

/// While the server waits for running requests to end, it looks this often whether they have.
constexpr std::chrono::milliseconds kDrainTick{20};
/// Before the next connection is accepted, if one could not be.
constexpr std::chrono::milliseconds kAcceptPause{20};
/// Files of the process that are not connections: the model's, and those of its threads.
constexpr size_t kOtherFiles = 64;
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
    const size_t most_files = raise_open_files_limit();
    if (most_files < http_.limits.connections + kOtherFiles)
      http_.limits.connections = std::max(most_files, 2 * kOtherFiles) - kOtherFiles;
    listen();
  }

  int run() {
    asio::co_spawn(io_, accept(), asio::detached);
    asio::co_spawn(io_, wait_for_signals(), asio::detached);
    std::thread io_thread([&] {
      ::pthread_setname_np(::pthread_self(), "io");
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
  /// The I/O thread. A handler that throws, for example because no memory is left, ends only what
  /// it was for.
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
    tcp::resolver resolver(io_);
    std::string where = url_of(options_.host, options_.port);
    try {
      if (options_.uds.empty()) {
        open(resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive)
                 .begin()
                 ->endpoint());
        // The port has the same place in the addresses of IPv4 and IPv6.
        sockaddr_in address{};
        const Protocol::endpoint bound = acceptor_.local_endpoint();
        std::memcpy(&address, bound.data(), sizeof address);
        where = url_of(options_.host, ntohs(address.sin_port));
      } else {
        where = "unix:" + options_.uds;
        socket_file_.emplace(options_.uds);
        open(asio::local::stream_protocol::endpoint(options_.uds));
      }
    } catch (const boost::system::system_error& error) {
      fail("cannot listen on {}: {}", where, error.code().message());
    }
    log().info("listening on {}", where);
    log().info("up to {} connections", http_.limits.connections);
  }

  void open(const Protocol::endpoint& endpoint) {
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(asio::socket_base::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
  }

  /// Ends the process without waiting for anybody.
  [[noreturn]] void leave(int status) {
    if (socket_file_) socket_file_->remove();
    ::_exit(status);
  }

  /// The main thread: the engine's.
  void load_and_step() {
    // Constructed in place: its parts refer to each other.
    AsyncEngine engine(std::unique_ptr<LLMEngine>(new LLMEngine(LLMEngine::load(model_, config_))));
    std::promise<void> is_set;
    asio::post(io_, [&] {
      try {
        api_.set_engine(engine);
        is_set.set_value();
      } catch (...) {
        is_set.set_exception(std::current_exception());
      }
    });
    is_set.get_future().get();
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

  Task<> end(std::string why, std::promise<void>& is_over) {
    if (!api_.is_draining()) {
      status_ = 1;
      log().error("{}", why);
    }
    api_.set_dead();
    co_await wait_for_requests(kSecondsToReport);
    // A client that reads nothing does not hold the process.
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
        co_await accept_one();
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
      asio::steady_timer timer(io_, kAcceptPause);
      co_await timer.async_wait(asio::use_awaitable);
      co_return;
    }
    if (num_connections_ >= http_.limits.connections) co_return;  // closes it
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

  const ServerOptions& options_;
  const std::string& model_;
  const EngineConfig& config_;
  const AccessLog access_log_;
  HttpService http_{
      .handler = [this](HttpRequest& request,
                        HttpReply& reply) { return api_.handle(request, reply); },
      .check = [this](const HttpRequest& request) { api_.check(request); },
      .more_headers = [this](const HttpRequest& request) { return api_.more_headers(request); },
      .access_log = &access_log_};
  // Its destructor destroys the connections that are suspended, which use the members above.
  asio::io_context io_{1};
  Api api_;
  std::optional<UnixSocketFile> socket_file_;
  asio::basic_socket_acceptor<Protocol> acceptor_;
  asio::signal_set signals_;
  size_t num_connections_ = 0;
  int status_ = 0;
};

}  // namespace

int run_server(const std::string& model, const EngineConfig& config, const ServerOptions& options) {
  require(options.port >= 0 && options.port <= 65535, "--port is {}; it must be from 0 to 65535",
          options.port);
  require(options.max_queued_requests >= 0, "--max-queued-requests is {}; it must be at least 0",
          options.max_queued_requests);
  require(options.shutdown_timeout >= 0, "--shutdown-timeout is {}; it must be at least 0",
          options.shutdown_timeout);
  return Server(model, config, options).run();
}

}  // namespace nanovllm::server
