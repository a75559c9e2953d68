#include "nanovllm/server/api.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/sampling_json.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/server/anthropic/writer.h"
#include "nanovllm/server/conversation/conversation.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/request_fields.h"
#include "nanovllm/server/openai/writers.h"
#include "nanovllm/server/page/page.h"

namespace nanovllm::server {

namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::string_view kModelPath = "/v1/models/";
constexpr int kPoolThreads = 2;  // for JSON, templates and tokenizing

/// Compares in a time that depends only on the lengths.
bool equal_keys(std::string_view given, std::string_view key) {
  if (key.empty()) return false;
  size_t different = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i)
    different |=
        static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  return different == 0;
}

/// The body of a request to tokenize or detokenize, which may name the model.
Json read_body(const Serving& serving, const std::string& text) {
  Json body = parse_json(text, "the body");
  if (!body.is_object()) throw ApiError(400, "the body must be a JSON object");
  serving.name_of(name_field(body, "model"));
  return body;
}

/// The text of POST /tokenize: {"prompt"} or {"messages", ...}, as vLLM has it.
std::string tokenize_response(const Serving& serving, const std::string& body_text) {
  const Json body = read_body(serving, body_text);
  if (bool_field(body, "return_token_strs", false))
    refuse_field("return_token_strs", "true is not supported");
  std::vector<int32_t> ids;
  if (body.contains("messages")) {
    const ChatRequest request = chat_request(body, serving.defaults);
    ids = read_conversation(serving, request).prompt;
  } else {
    const auto prompt = body.find("prompt");
    if (prompt == body.end() || !prompt->is_string())
      throw ApiError(400, "prompt must be a text", "prompt");
    ids = serving.encode(prompt->get<std::string>(), bool_field(body, "add_special_tokens", true),
                         name_field(body, "cache_salt"));
  }
  const Json answer = {{"count", ids.size()},
                       {"max_model_len", serving.client.engine().setup().config.max_model_len},
                       {"tokens", ids}};
  return dump_json(answer);
}

/// The text of POST /detokenize: {"tokens": [...]}.
std::string detokenize_response(const Serving& serving, const std::string& body_text) {
  const Json body = read_body(serving, body_text);
  const Json* tokens = find_field(body, "tokens");
  if (tokens == nullptr) refuse_field("tokens", "is missing");
  const std::vector<int32_t> ids =
      naming_field([&] { return token_ids_from_json(*tokens, "tokens"); });
  const int64_t vocab_size = serving.client.engine().setup().model.vocab_size;
  for (const int32_t id : ids)
    if (id >= vocab_size)
      refuse_field("tokens", "contains {}; the vocabulary has {} ids, 0 to {}", id, vocab_size,
                   vocab_size - 1);
  const Json answer = {{"prompt", serving.tokenizer().decode(ids, false)}};
  return dump_json(answer);
}

}  // namespace

const Api::Route Api::kRoutes[] = {
    {"GET", "/", &Api::page, Needs::kNothing},
    {"GET", "/health", &Api::health, Needs::kNothing},
    {"GET", "/version", &Api::version},
    {"GET", "/load", &Api::load},
    {"GET", "/metrics", &Api::metrics},
    {"GET", "/v1/models", &Api::models},
    {"GET", kModelPath, &Api::model},
    {"POST", "/v1/completions", &Api::completions, Needs::kKeyAndEngine},
    {"POST", "/v1/chat/completions", &Api::chat, Needs::kKeyAndEngine},
    {"POST", "/v1/messages", &Api::messages, Needs::kKeyAndEngine},
    {"POST", "/v1/messages/count_tokens", &Api::count_tokens, Needs::kKeyAndEngine},
    {"POST", "/tokenize", &Api::tokenize, Needs::kKeyAndEngine},
    {"POST", "/detokenize", &Api::detokenize, Needs::kKeyAndEngine},
};

bool Api::Route::takes(std::string_view asked) const {
  if (path.size() == 1 || !path.ends_with('/')) return asked == path;
  return asked.size() > path.size() && asked.starts_with(path);
}

Api::Api(asio::io_context& io, const std::string& model, const ServerOptions& options)
    : io_(io), options_(options), model_(model), names_(options.served_names), pool_(kPoolThreads) {
  if (names_.empty()) names_.push_back(model);
}

Api::~Api() { pool_.join(); }

void Api::set_engine(AsyncEngine& engine) {
  // What may throw comes first: the client must not outlive the engine.
  std::optional<ChatTemplate> chat_template;
  if (engine.tokenizer() != nullptr)
    chat_template = ChatTemplate::load(model_, options_.chat_template);
  SamplingParams defaults = {.max_tokens = kNoMaxTokens};
  if (options_.generation_config == "auto") defaults = checkpoint_sampling_params(model_);
  serving_.reset(new Serving{
      .io = io_,
      .pool = pool_,
      .client = EngineClient(io_, engine, names_.front()),
      .chat_template = std::move(chat_template),
      .defaults = defaults,
      .names = names_,
      .most_sequences = engine.setup().config.max_num_seqs + options_.max_queued_requests});
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
    reply.add_event(error->body(request.path), error->event(request.path));
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

void Api::check(const HttpRequest& request) const {
  if (!is_preflight(request)) route_of(request);
}

bool Api::is_preflight(const HttpRequest& request) const {
  return !options_.cors.origins.empty() && server::is_preflight(request);
}

const Api::Route& Api::route_of(const HttpRequest& request) const {
  const std::string_view method =
      request.method == "HEAD" ? std::string_view("GET") : request.method;
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (!route.takes(request.path)) continue;
    if (route.method == method) {
      if (route.needs != Needs::kNothing) check_key(request);
      return route;
    }
    (allowed += allowed.empty() ? "" : ", ") += route.method;
  }
  if (allowed.empty()) throw ApiError::unknown_route(request.method, request.path);
  throw ApiError::wrong_method(request.method, request.path, std::move(allowed));
}

/// It needs no key: browsers send none.
Task<> Api::answer_preflight(const HttpRequest& request, HttpReply& reply) {
  const auto is_allow = [](const auto& header) {
    return header.first == "Access-Control-Allow-Origin";
  };
  if (std::ranges::none_of(reply.more_headers, is_allow))
    throw ApiError(403, "pages of this origin may not use the server; see --allowed-origins");
  const HttpHeaders headers = preflight_headers(options_.cors, request);
  co_await reply.send(200, "text/plain", "", headers);
}

void Api::check_key(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return;
  std::string_view given = request.header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (equal_in_any_case(given.substr(0, kBearer.size()), kBearer))
    given.remove_prefix(kBearer.size());
  else given = request.header("x-api-key");  // Anthropic's clients
  bool is_known = false;
  for (const std::string& key : options_.api_keys) is_known |= equal_keys(given, key);
  if (!is_known) throw ApiError::wrong_key();
}

void Api::check_ready() const {
  if (state_ == State::kReady) return;
  if (state_ == State::kDraining) throw ApiError::shutting_down();
  throw ApiError(503,
                 state_ == State::kLoading ? "the model is being loaded" : "the engine has failed");
}

ServedModel Api::served_model(const std::string& name) const {
  const int64_t longest = serving_ ? serving_->client.engine().setup().config.max_model_len : 0;
  return {name, start_time_, longest};
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

Task<> Api::models(HttpRequest&, HttpReply& reply) {
  std::vector<ServedModel> models;
  for (const std::string& name : names_) models.push_back(served_model(name));
  co_await reply.send(200, kJson, models_response(models), HttpHeaders());
}

Task<> Api::model(HttpRequest& request, HttpReply& reply) {
  const std::string name = url_decoded(request.path.substr(kModelPath.size()));
  if (std::ranges::count(names_, name) == 0) throw ApiError::unknown_model(name);
  co_await reply.send(200, kJson, model_response(served_model(name)), HttpHeaders());
}

Task<> Api::completions(HttpRequest& request, HttpReply& reply) {
  // It has no template. To tokenize a small body takes less time than to wake a thread of the pool
  // and then this one again.
  constexpr size_t kMostBytesHere = 2048;
  co_await generate(*serving_, request, reply, read_completion, kMostBytesHere);
}

Task<> Api::chat(HttpRequest& request, HttpReply& reply) {
  co_await generate(*serving_, request, reply, read_chat);
}

Task<> Api::messages(HttpRequest& request, HttpReply& reply) {
  co_await generate(*serving_, request, reply, read_message);
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
  const auto work = [&] { response = make(*serving_, request.body); };
  co_await on_pool(pool_, work);
  co_await reply.send(200, kJson, response, HttpHeaders());
}

}  // namespace nanovllm::server
