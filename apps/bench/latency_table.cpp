#include "apps/bench/latency_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanovllm/base/json.h"

namespace nanovllm {

namespace {

/// The number with four digits, however large it is.
std::string four_digits(double x) {
  return fmt::format("{:.{}f}", x, x < 10 ? 3 : x < 100 ? 2 : x < 1000 ? 1 : 0);
}

std::string with_spread(const Spread& spread, double factor) {
  return fmt::format("{} ({}-{})", four_digits(factor * spread.median),
                     four_digits(factor * spread.least), four_digits(factor * spread.most));
}

double prefill_rate(const LatencyResult& r) {
  return static_cast<double>(r.batch_size * r.input_len) / r.prefill_s.median;
}
double output_rate(const LatencyResult& r) {
  return static_cast<double>(r.batch_size * r.output_len) / r.total_s.median;
}

constexpr double kMs = 1000;

}  // namespace

Spread Spread::of(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return {n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(),
          values.back()};
}

std::string latency_header(const std::string& format) {
  if (format == "table")
    return fmt::format("{:>5} {:>6} {:>6}  {:<22}  {:<22} {:>10}\n", "batch", "input", "output",
                       "prefill ms (min-max)", "decode ms/step", "out tok/s");
  if (format == "markdown")
    return "| batch | input | output | prefill ms | prefill tok/s | decode ms/step | "
           "output tok/s | total s |\n"
           "|---|---|---|---|---|---|---|---|\n";
  if (format == "csv")
    return "batch_size,input_len,output_len,prefill_s,prefill_s_min,prefill_s_max,"
           "decode_ms_per_step,decode_ms_per_step_min,decode_ms_per_step_max,"
           "prefill_tokens_per_second,output_tokens_per_second,total_s,total_s_min,total_s_max\n";
  return "";
}

std::string latency_line(const std::string& format, const LatencyResult& r) {
  if (format == "table")
    return fmt::format("{:>5} {:>6} {:>6}  {:<22}  {:<22} {:>10}\n", r.batch_size, r.input_len,
                       r.output_len, with_spread(r.prefill_s, kMs),
                       with_spread(r.decode_ms_per_step, 1), four_digits(output_rate(r)));
  if (format == "markdown")
    return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", r.batch_size, r.input_len,
                       r.output_len, with_spread(r.prefill_s, kMs), four_digits(prefill_rate(r)),
                       with_spread(r.decode_ms_per_step, 1), four_digits(output_rate(r)),
                       with_spread(r.total_s, 1));
  if (format == "csv") {
    const Spread &p = r.prefill_s, &d = r.decode_ms_per_step, &t = r.total_s;
    return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", r.batch_size, r.input_len,
                       r.output_len, p.median, p.least, p.most, d.median, d.least, d.most,
                       prefill_rate(r), output_rate(r), t.median, t.least, t.most);
  }
  Json json = {{"batch_size", r.batch_size},
               {"input_len", r.input_len},
               {"output_len", r.output_len},
               {"prefill_tokens_per_second", prefill_rate(r)},
               {"output_tokens_per_second", output_rate(r)}};
  for (const auto& [name, spread] : {std::pair<std::string, Spread>("prefill_s", r.prefill_s),
                                     {"decode_ms_per_step", r.decode_ms_per_step},
                                     {"total_s", r.total_s}}) {
    json[name] = spread.median;
    json[name + "_min"] = spread.least;
    json[name + "_max"] = spread.most;
  }
  return dump_json(json) + "\n";
}

}  // namespace nanovllm
