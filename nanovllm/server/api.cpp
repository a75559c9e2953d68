#include "nanovllm/server/api.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/server/anthropic/writer.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/tokenizing.h"
#include "nanovllm/server/openai/writers.h"
#include "nanovllm/server/page/page.h"
#include "nanovllm/server/responses/writer.h"

namespace nanovllm::server {

namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kModelPath = "/v1/models/", kResponsePath = "/v1/responses/";

/// Compares in a time that depends only on the lengths.
bool equal_keys(std::string_view given, std::string_view key) {
  if (key.empty()) return false;
  size_t different = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i)
    different |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  return different == 0;
}

/// The path without doubled slashes and without slashes at the end.
std::string tidy(std::string_view path) {
  std::string tidy;
  for (const char c : path)
    if (c != '/' || !tidy.ends_with('/')) tidy += c;
  if (tidy.size() > 1 && tidy.ends_with('/')) tidy.pop_back();
  return tidy;
}

}  // namespace

const Api::Route Api::kRoutes[] = {
    {"GET", "/", &Api::page, Needs::kNothing},
    {"GET", "/health", &Api::health, Needs::kNothing},
    {"GET", "/version", &Api::version},
    {"GET", "/load", &Api::load},
    {"GET", "/metrics", &Api::metrics},
    {"GET", "/tokenizer_info", &Api::tokenizer_info, Needs::kKeyAndEngine},
    {"GET", "/v1/models", &Api::models},
    {"GET", kModelPath, &Api::model},
    {"POST", "/v1/completions", &Api::completions, Needs::kKeyAndEngine},
    {"POST", "/v1/chat/completions", &Api::chat, Needs::kKeyAndEngine},
    {"POST", "/v1/messages", &Api::messages, Needs::kKeyAndEngine},
    {"POST", "/v1/messages/count_tokens", &Api::count_tokens, Needs::kKeyAndEngine},
    {"POST", "/v1/responses", &Api::responses, Needs::kKeyAndEngine},
    {"POST", "/v1/responses/input_tokens", &Api::count_input, Needs::kKeyAndEngine},
    {"GET", kResponsePath, &Api::stored_response},
    {"DELETE", kResponsePath, &Api::delete_response},
    {"POST", "/tokenize", &Api::tokenize, Needs::kKeyAndEngine},
    {"POST", "/detokenize", &Api::detokenize, Needs::kKeyAndEngine},
};

bool Api::Route::takes(std::string_view asked) const {
  if (path.size() == 1 || !path.ends_with('/')) return asked == path;
  return asked.size() > path.size() && asked.starts_with(path);
}

Api::Api(asio::io_context& io, const std::string& model, const ServerOptions& options)
    : io_(io),
      options_(options),
      model_(model),
      names_(options.served_names),
      responses_({.responses = static_cast<size_t>(options.max_stored_responses),
                  .bytes = static_cast<size_t>(options.stored_responses_bytes)}) {
  if (names_.empty()) names_.push_back(model);
}

void Api::set_engine(AsyncEngine& engine) {
  // Everything that may throw comes first, because the client must not outlive the engine.
  std::optional<ChatTemplate> chat_template;
  if (engine.tokenizer() != nullptr) {
    chat_template = ChatTemplate::load(model_, options_.chat_template);
    tokenizer_info_ = describe_tokenizer(model_, options_.chat_template);
  }
  AnswerForm answer_form;
  if (chat_template)
    answer_form = AnswerForm(*engine.tokenizer(), *chat_template, options_.tool_call_parser,
                             options_.reasoning_parser);
  const SamplingParams defaults = options_.generation_config.defaults(model_);
  serving_.reset(
      new LiveServing{{.setup = engine.setup(),
                       .requests = engine.requests(),
                       .vocabulary = engine.tokenizer(),
                       .chat_template = std::move(chat_template),
                       .answer_form = std::move(answer_form),
                       .defaults = defaults,
                       .template_defaults = options_.template_defaults,
                       .names = names_,
                       .drops_media = options_.drops_media,
                       .responses = &responses_},
                      io_,
                      pool_,
                      EngineClient(io_, engine, names_.front()),
                      engine.setup().config.max_num_seqs + options_.max_queued_requests,
                      std::chrono::milliseconds(std::llround(options_.sse_keepalive * 1000))});
  asio::co_spawn(io_, serving_->client.run(), asio::detached);
  state_ = State::kReady;
}

void Api::set_dead() {
  if (!is_draining()) state_ = State::kDead;
  if (serving_) serving_->client.fail_all("the engine has ended");
}

void Api::stop_engine() {
  if (serving_) serving_->client.engine().exit();
}

Task<> Api::handle(HttpRequest& request, HttpReply& reply) {
  std::optional<ApiError> error;
  try {
    co_await answer(request, reply);
  } catch (const ApiError& e) {
    error = e;
  } catch (const PromptTooLong& e) {
    error = ApiError::prompt_too_long(e.what(), request.path);
  } catch (const UserError& e) {
    error = ApiError(400, e.what());
  } catch (const Cancelled&) {  // the client is gone
  } catch (const std::bad_alloc&) {
    error = ApiError(503, "not enough memory for this request");
  } catch (const EngineDead&) {
    // A drain ends the engine when its time is over.
    error = is_draining() ? ApiError::shutting_down() : ApiError(500, "the engine has failed");
  } catch (const boost::system::system_error&) {
    throw;
  } catch (const std::exception& e) {
    log().error("{} {}: {}", request.method, request.path, what_of(e));
    error = ApiError(500, "internal error");
  }
  if (!error) co_return;
  if (reply.status() != 0) {  // a stream has begun
    reply.record.end = "error";
    reply.add_event(error->event_data(request.path, reply.num_events()),
                    error->event(request.path));
    co_await reply.end_events();
    co_return;
  }
  const HttpHeaders headers = error->headers();
  co_await reply.send(error->status, kJson, error->body(request.path), headers);
}

Task<> Api::answer(HttpRequest& request, HttpReply& reply) {
  if (is_preflight(request)) {
    co_await answer_preflight(request, reply);
    co_return;
  }
  const Route& route = route_of(request);
  Counted running(num_requests_);
  if (route.needs == Needs::kKeyAndEngine) {
    check_ready();
    running.set(1);
  }
  co_await (this->*route.handler)(request, reply);
}

Admitted Api::admit(const HttpRequest& request) const {
  if (request.path != "/" && request.path != "/health") check_origin(options_.cors, request);
  Admitted admitted{.takes_body = false, .client = request.address};
  if (is_preflight(request)) return admitted;
  const Route& route = route_of(request);
  if (route.needs == Needs::kNothing) return admitted;
  // Clients behind a proxy have one address; a key without which nothing is answered tells them
  // apart.
  if (!options_.api_keys.empty()) admitted.client += fmt::format(" {}", key_of(request));
  admitted.takes_body = route.method == "POST";
  if (admitted.takes_body) check_content_type(request);
  return admitted;
}

bool Api::is_preflight(const HttpRequest& request) const {
  return !options_.cors.origins.empty() && server::is_preflight(request);
}

const Api::Route& Api::route_of(const HttpRequest& request) {
  const std::string_view method =
      request.method == "HEAD" ? std::string_view("GET") : request.method;
  std::string allowed;
  for (const std::string& path : {request.path, tidy(request.path)})
    for (const Route& route : kRoutes) {
      if (!route.takes(path)) continue;
      if (route.method == method) return route;
      (allowed += allowed.empty() ? "" : ", ") += route.method;
    }
  if (allowed.empty()) throw ApiError::unknown_route(request.method, request.path);
  throw ApiError::wrong_method(request.method, request.path, std::move(allowed));
}

/// Answers a browser that asks whether it may send a request. Browsers send no key with that.
Task<> Api::answer_preflight(const HttpRequest& request, HttpReply& reply) {
  const auto is_allow = [](const auto& header) {
    return header.first == "Access-Control-Allow-Origin";
  };
  if (std::ranges::none_of(reply.more_headers, is_allow))
    throw ApiError::foreign_origin(request.header("Origin"));
  const HttpHeaders headers = preflight_headers(options_.cors, request);
  co_await reply.send(200, "text/plain", "", headers);
}

size_t Api::key_of(const HttpRequest& request) const {
  std::string_view given = request.header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (equal_in_any_case(given.substr(0, kBearer.size()), kBearer))
    given.remove_prefix(kBearer.size());
  else given = request.header("x-api-key");  // Anthropic's clients
  size_t found = options_.api_keys.size();
  for (size_t i = 0; i < options_.api_keys.size(); ++i)
    if (equal_keys(given, options_.api_keys[i])) found = i;
  if (found == options_.api_keys.size()) throw ApiError::wrong_key();
  return found;
}

void Api::check_ready() const {
  if (state_ == State::kReady) return;
  if (state_ == State::kDraining) throw ApiError::shutting_down();
  throw ApiError(503,
                 state_ == State::kLoading ? "the model is being loaded" : "the engine has failed");
}

ServedModel Api::served_model(const std::string& name) const {
  return {name, start_time_, serving_->client.engine().setup().config.max_model_len};
}

Task<> Api::health(HttpRequest&, HttpReply& reply) {
  co_await reply.send(state_ == State::kReady ? 200 : 503, "text/plain", "");
}

Task<> Api::page(HttpRequest&, HttpReply& reply) {
  HttpHeaders headers;
  headers.emplace_back("Content-Security-Policy", kPagePolicy);
  headers.emplace_back("X-Content-Type-Options", "nosniff");
  headers.emplace_back("Referrer-Policy", "no-referrer");
  headers.emplace_back("Cache-Control", "no-cache");
  co_await reply.send(200, "text/html; charset=utf-8", std::string(kPage), headers);
}

Task<> Api::version(HttpRequest&, HttpReply& reply) {
  const Json version = {{"version", options_.version}};
  co_await reply.send(200, kJson, dump_json(version));
}

Task<> Api::load(HttpRequest&, HttpReply& reply) {
  const Json load = {{"server_load", num_requests_}};
  co_await reply.send(200, kJson, dump_json(load));
}

Task<> Api::metrics(HttpRequest&, HttpReply& reply) {
  if (!serving_) throw ApiError(503, "the model is being loaded");
  constexpr std::string_view kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";
  co_await reply.send(200, kPrometheusText, serving_->client.metrics(), HttpHeaders());
}

Task<> Api::tokenizer_info(HttpRequest&, HttpReply& reply) {
  serving_->tokenizer();  // throws if there is none
  co_await reply.send(200, kJson, tokenizer_info_, HttpHeaders());
}

Task<> Api::models(HttpRequest&, HttpReply& reply) {
  if (!serving_) check_ready();
  std::vector<ServedModel> models;
  for (const std::string& name : names_) models.push_back(served_model(name));
  co_await reply.send(200, kJson, models_response(models), HttpHeaders());
}

Task<> Api::model(HttpRequest& request, HttpReply& reply) {
  if (!serving_) check_ready();
  const std::string path = request.path.starts_with(kModelPath) ? request.path : tidy(request.path);
  const std::string name = url_decoded(path.substr(kModelPath.size()));
  if (std::ranges::count(names_, name) == 0) throw ApiError::unknown_model(name);
  co_await reply.send(200, kJson, model_response(served_model(name)), HttpHeaders());
}

Task<> Api::completions(HttpRequest& request, HttpReply& reply) {
  // A completion has no template, and tokenizing a small body takes less time than waking a thread
  // of the pool and then this one again.
  constexpr size_t kMostBytesHere = 2048;
  co_await generate(*serving_, request, reply, read_completion, kMostBytesHere);
}

Task<> Api::chat(HttpRequest& request, HttpReply& reply) {
  co_await generate(*serving_, request, reply, read_chat);
}

Task<> Api::messages(HttpRequest& request, HttpReply& reply) {
  co_await generate(*serving_, request, reply, read_message);
}

Task<> Api::responses(HttpRequest& request, HttpReply& reply) {
  co_await generate(*serving_, request, reply, read_response);
}

Task<> Api::count_input(HttpRequest& request, HttpReply& reply) {
  co_await answer_on_pool(request, reply, count_input_response);
}

Task<> Api::stored_response(HttpRequest& request, HttpReply& reply) {
  std::string id = request.path.substr(kResponsePath.size());
  constexpr std::string_view kItems = "/input_items";
  const bool asks_for_items = id.ends_with(kItems);
  if (asks_for_items) id.resize(id.size() - kItems.size());
  const auto response = responses_.find(id);
  if (response == nullptr) throw ApiError::unknown_response(id);
  std::string text = response->response;
  const std::function<void()> list = [&] { text = input_items_response(*response); };
  if (asks_for_items) co_await on_pool(pool_.lane(response->items.size()), list);
  co_await reply.send(200, kJson, std::move(text), HttpHeaders());
}

Task<> Api::delete_response(HttpRequest& request, HttpReply& reply) {
  const std::string id = request.path.substr(kResponsePath.size());
  if (!responses_.remove(id)) throw ApiError::unknown_response(id);
  const Json deleted = {{"id", id}, {"object", "response"}, {"deleted", true}};
  co_await reply.send(200, kJson, dump_json(deleted), HttpHeaders());
}

Task<> Api::count_tokens(HttpRequest& request, HttpReply& reply) {
  co_await answer_on_pool(request, reply, count_tokens_response);
}

Task<> Api::tokenize(HttpRequest& request, HttpReply& reply) {
  co_await answer_on_pool(request, reply, tokenize_response);
}

Task<> Api::detokenize(HttpRequest& request, HttpReply& reply) {
  co_await answer_on_pool(request, reply, detokenize_response);
}

Task<> Api::answer_on_pool(HttpRequest& request, HttpReply& reply, MakeResponse make) {
  std::string response;
  std::stop_source stop;
  const auto work = [&] { response = make(*serving_, request.body, stop.get_token()); };
  co_await work_for_client(pool_, request, reply, stop, work);
  co_await reply.send(200, kJson, response, HttpHeaders());
}

}  // namespace nanovllm::server
