#include "nanovllm/ops/cpu/gemm/pack_quantized.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/ops/cpu/kernels/int_gemm.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

namespace nanovllm::cpu {

namespace {

int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// The number of values of k that a panel has: rounded up for integers, because their kernels
/// quantize x by groups.
int64_t padded(const PackedWeight& w) {
  return w.format == QuantizedFormat::kE4M3 ? w.k : round_up(w.k, kIntGroup);
}

/// The columns of a part, sorted by group; empty if they are sorted already.
std::vector<int32_t> sorted_columns(const QuantizedRows& part) {
  const std::vector<int32_t>& groups = part.matrix->groups;
  if (groups.empty()) return {};
  std::vector<int32_t> order(static_cast<size_t>(part.columns.count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return groups[static_cast<size_t>(part.columns.first + a)] <
           groups[static_cast<size_t>(part.columns.first + b)];
  });
  return order;
}

/// The greatest common divisor of the places, in this order, at which another group begins; 0 if
/// there are none.
int64_t common_group(const QuantizedRows& part, const std::vector<int32_t>& order) {
  const QuantizedMatrix& matrix = *part.matrix;
  const auto group_of = [&](int64_t i) {
    const int64_t column = part.columns.first + (order.empty() ? i : order[static_cast<size_t>(i)]);
    return matrix.groups.empty() ? column / matrix.scale_columns
                                 : int64_t{matrix.groups[static_cast<size_t>(column)]};
  };
  int64_t divisor = 0;
  for (int64_t i = 1; i < part.columns.count; ++i)
    if (group_of(i) != group_of(i - 1)) divisor = std::gcd(divisor, i);
  return divisor;
}

bool zeros_fit_in_bytes(const QuantizedMatrix& matrix) {
  return std::ranges::all_of(matrix.zeros, [](int z) { return 0 <= z && z <= 255; });
}

/// The rows of a panel: their values in the panel's order of k, and the places of their scales.
struct PanelRows {
  std::vector<uint8_t> values;  // [columns, padded_k]
  std::vector<std::pair<const QuantizedRows*, int64_t>> rows;
};

PanelRows read_rows(std::span<const QuantizedRows> parts, int64_t first_column,
                    int64_t panel_columns, int64_t k, int64_t padded_k) {
  PanelRows panel;
  panel.values.resize(static_cast<size_t>(panel_columns * padded_k));
  std::vector<uint8_t> dense(static_cast<size_t>(panel_columns * k));
  int64_t part_first = 0;
  for (const QuantizedRows& part : parts) {
    const int64_t first = std::max(first_column, part_first);
    const int64_t end = std::min(first_column + panel_columns, part_first + part.rows.count);
    if (first < end) {
      const int64_t row = part.rows.first + first - part_first;
      part.matrix->values({row, end - first}, part.columns,
                          dense.data() + (first - first_column) * k);
      for (int64_t i = 0; i < end - first; ++i) panel.rows.emplace_back(&part, row + i);
    }
    part_first += part.rows.count;
  }
  for (size_t c = 0; c < panel.rows.size(); ++c)
    std::copy_n(dense.begin() + static_cast<int64_t>(c) * k, k,
                panel.values.begin() + static_cast<int64_t>(c) * padded_k);
  return panel;
}

void reorder(PanelRows& panel, const std::vector<int32_t>& order, int64_t padded_k) {
  std::vector<uint8_t> row(order.size());
  for (size_t c = 0; c < panel.rows.size(); ++c) {
    uint8_t* const values = panel.values.data() + static_cast<int64_t>(c) * padded_k;
    for (size_t i = 0; i < order.size(); ++i) row[i] = values[order[i]];
    std::ranges::copy(row, values);
  }
}

/// Writes `count` values of each column, from `k` on, and returns the end of what it has written.
uint8_t* pack_values(uint8_t* to, const PanelRows& panel, QuantizedFormat format, int64_t columns,
                     int64_t padded_k, int64_t k, int64_t count) {
  if (format == QuantizedFormat::kE4M3) {
    for (int64_t i = k; i < k + count; ++i)
      for (int64_t c = 0; c < columns; ++c)
        *to++ = panel.values[static_cast<size_t>(c * padded_k + i)];
    return to;
  }
  const int64_t step = format == QuantizedFormat::kInt4 ? 8 : 4;
  for (int64_t i = k; i < k + count; i += step)
    for (int64_t c = 0; c < columns; ++c, to += 4) {
      const uint8_t* const from = panel.values.data() + c * padded_k + i;
      uint32_t low = 0, high = 0;
      std::memcpy(&low, from, 4);
      if (step == 8) std::memcpy(&high, from + 4, 4);
      low |= high << 4;
      std::memcpy(to, &low, 4);
    }
  return to;
}

}  // namespace

std::shared_ptr<const PackedWeight> pack_quantized(std::span<const WeightRows> all_parts,
                                                   DType dtype, int64_t num_experts,
                                                   int64_t panel_columns, int threads) {
  std::vector<QuantizedRows> parts;
  for (const WeightRows& part : all_parts) parts.push_back(part.quantized());
  if (!std::ranges::all_of(parts, [](const auto& part) { return part.matrix != nullptr; }))
    return nullptr;
  const size_t num_parts = parts.size() / static_cast<size_t>(num_experts);
  auto w = std::make_shared<PackedWeight>();
  w->dtype = dtype;
  w->num_experts = num_experts;
  w->k = parts[0].columns.count;
  w->format = parts[0].matrix->format;
  w->order = sorted_columns(parts[0]);
  const bool is_float = w->format == QuantizedFormat::kE4M3;
  for (size_t i = 0; i < parts.size(); ++i) {
    const QuantizedRows& part = parts[i];
    if (part.matrix->format != *w->format || part.columns.count != w->k ||
        part.rows.count != parts[i % num_parts].rows.count || sorted_columns(part) != w->order ||
        !zeros_fit_in_bytes(*part.matrix))
      return nullptr;
    w->group = std::gcd(w->group, common_group(part, w->order));
  }
  for (size_t i = 0; i < num_parts; ++i) w->n += parts[i].rows.count;
  const int64_t padded_k = padded(*w);
  if (w->group % kIntGroup != 0 || (is_float && !w->order.empty())) return nullptr;
  if (w->group == 0) w->group = padded_k;

  const int64_t value_bits = w->format == QuantizedFormat::kInt4 ? 4 : 8;
  const int64_t scale_bytes =
      panel_columns * static_cast<int64_t>(is_float ? sizeof(float) : sizeof(float) + 1);
  const auto group_bytes = [&](int64_t count) {
    return round_up(count * panel_columns * value_bits / 8 + scale_bytes, 64);
  };
  const int64_t groups = ceil_div(padded_k, w->group);
  const int64_t panels = ceil_div(w->n, panel_columns);
  w->group_bytes = group_bytes(w->group);
  w->panel_bytes = (groups - 1) * w->group_bytes + group_bytes(padded_k - (groups - 1) * w->group);
  w->expert_bytes = panels * w->panel_bytes;
  w->panels = allocate_weight(static_cast<size_t>(num_experts * w->expert_bytes));
  std::atomic<bool> has_nan = false;
  parallel_for_once(threads, num_experts * panels, [&](int64_t task, int) {
    const auto own =
        std::span(parts).subspan(static_cast<size_t>(task / panels) * num_parts, num_parts);
    PanelRows panel = read_rows(own, task % panels * panel_columns, panel_columns, w->k, padded_k);
    if (!w->order.empty()) reorder(panel, w->order, padded_k);
    if (is_float && std::ranges::any_of(panel.values, [](int x) { return (x & 127) == 127; }))
      has_nan = true;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t k = g * w->group, count = std::min(w->group, padded_k - k);
      uint8_t* to = pack_values(
          static_cast<uint8_t*>(w->panels.get()) + task * w->panel_bytes + g * w->group_bytes,
          panel, *w->format, panel_columns, padded_k, k, count);
      uint8_t* const zeros = to + panel_columns * static_cast<int64_t>(sizeof(float));
      for (size_t c = 0; c < panel.rows.size(); ++c) {
        const auto& [part, row] = panel.rows[c];
        const int64_t column =
            part->columns.first + (w->order.empty() ? k : w->order[static_cast<size_t>(k)]);
        const float scale = part->matrix->scale(row, column) * (is_float ? kE4M3Unit : 1);
        std::memcpy(to + c * sizeof(float), &scale, sizeof scale);
        if (!is_float) zeros[c] = static_cast<uint8_t>(part->matrix->zero(row, column));
      }
    }
  });
  // The kernel would read NaN as 480.
  if (has_nan) return nullptr;
  return w;
}

void dequantize_row(float* row, const PackedWeight& w, int64_t i, int64_t panel_columns) {
  const auto* const panel =
      static_cast<const uint8_t*>(w.panels.get()) + i / panel_columns * w.panel_bytes;
  const int64_t column = i % panel_columns, padded_k = padded(w);
  for (int64_t first = 0; first < w.k; first += w.group) {
    const int64_t count = std::min(w.group, padded_k - first);
    const uint8_t* const values = panel + first / w.group * w.group_bytes;
    const uint8_t* const scales =
        values + count * panel_columns / (w.format == QuantizedFormat::kInt4 ? 2 : 1);
    float scale;
    std::memcpy(&scale, scales + column * static_cast<int64_t>(sizeof scale), sizeof scale);
    const bool is_float = w.format == QuantizedFormat::kE4M3;  // floats have no zero points
    const int zero =
        is_float ? 0 : scales[panel_columns * static_cast<int64_t>(sizeof scale) + column];
    for (int64_t j = 0; j < std::min(count, w.k - first); ++j) {
      float value;
      if (is_float) {
        value = e4m3_to_f32(values[j * panel_columns + column]) / kE4M3Unit;
      } else if (w.format == QuantizedFormat::kInt8) {
        const int64_t at = (j / 4 * panel_columns + column) * 4 + j % 4;
        value = static_cast<float>(values[at] - zero);
      } else {
        const int both = values[(j / 8 * panel_columns + column) * 4 + j % 4];
        value = static_cast<float>((j % 8 < 4 ? both & 15 : both >> 4) - zero);
      }
      const int64_t k = first + j;
      row[w.order.empty() ? k : w.order[static_cast<size_t>(k)]] = value * scale;
    }
  }
}

}  // namespace nanovllm::cpu
