#pragma once

#include <utility>  // awaitable.hpp of Boost 1.74 needs it and does not include it

// The parts of Asio that the server uses.
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace nanovllm::server {

namespace asio = boost::asio;
using boost::system::error_code;

/// A coroutine on the I/O thread.
template <class T = void>
using Task = asio::awaitable<T>;

}  // namespace nanovllm::server
