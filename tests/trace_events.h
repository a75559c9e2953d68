#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm::testing {

/// A slice of a trace; a begin and an end of the same track are one slice. Times are nanoseconds.
struct TraceSlice {
  std::string name;
  int64_t begin = 0, end = -1;  ///< -1: it has no end
  Json args;
};

/// A trace file as a viewer reads it.
struct TraceEvents {
  std::map<std::string, std::vector<TraceSlice>> tracks;  ///< by name, in the order of their begins
  std::map<std::string, std::vector<int64_t>> counters;
  std::vector<std::string> errors;  ///< what a viewer would complain about

  /// Reads it line by line, so that the end may be missing.
  static TraceEvents read(const std::string& path) {
    TraceEvents trace;
    std::ifstream file(path);
    std::vector<Json> events;
    for (std::string line; std::getline(file, line);) {
      if (line == "[" || line == "]") continue;
      if (line.ends_with(',')) line.pop_back();
      events.push_back(Json::parse(line));
      if (!events.back().contains("args")) events.back()["args"] = Json::object();
    }
    std::map<int64_t, std::string> names;
    for (const Json& event : events)
      if (event["name"] == "thread_name")
        names[event["tid"].get<int64_t>()] = event["args"]["name"].string();
    std::ranges::stable_sort(events, {}, [](const Json& e) { return nanoseconds(e["ts"]); });
    for (const Json& event : events) trace.add(event, names[event["tid"].get<int64_t>()]);
    trace.check_nesting();
    return trace;
  }

  /// The sum of an argument over the slices of a track with this name.
  int64_t sum(const std::string& track, const std::string& name, const std::string& arg) const {
    int64_t total = 0;
    for (const TraceSlice& slice : tracks.at(track))
      if (slice.name == name && slice.args.contains(arg)) total += slice.args[arg].get<int64_t>();
    return total;
  }
  /// The names of the phases of a sequence's track, in order. Phases must follow each other without
  /// a gap.
  std::vector<std::string> phases(const std::string& track) {
    std::vector<std::string> list;
    int64_t last = -1;
    for (const TraceSlice& slice : tracks.at(track)) {
      if (slice.name.ends_with("tokens")) continue;  // a part of a prompt, inside its phase
      if (last >= 0 && slice.begin != last) errors.push_back(track + ": a gap at " + slice.name);
      last = slice.end;
      list.push_back(slice.name);
    }
    return list;
  }

 private:
  static int64_t nanoseconds(const Json& microseconds) {
    return std::llround(microseconds.get<double>() * 1000);
  }

  void add(const Json& event, const std::string& track) {
    const std::string& phase = event["ph"].string();
    const int64_t at = nanoseconds(event["ts"]);
    std::vector<TraceSlice>& slices = tracks[track];
    if (phase == "X") {
      slices.push_back({event["name"].string(), at, at + nanoseconds(event["dur"]), event["args"]});
    } else if (phase == "B") {
      slices.push_back({event["name"].string(), at, -1, event["args"]});
    } else if (phase == "E") {
      const auto open = std::find_if(slices.rbegin(), slices.rend(),
                                     [](const TraceSlice& slice) { return slice.end == -1; });
      if (open == slices.rend()) return errors.push_back(track + ": an end without a begin");
      open->end = at;
      open->args.update(event["args"]);
    } else if (phase == "C") {
      counters[event["name"].string()].push_back(event["args"]["value"].get<int64_t>());
    }
  }

  /// Slices of a track contain each other or are apart.
  void check_nesting() {
    for (const auto& [track, slices] : tracks) {
      std::vector<int64_t> open;
      for (const TraceSlice& slice : slices) {
        while (!open.empty() && open.back() >= 0 && open.back() <= slice.begin) open.pop_back();
        if (!open.empty() && open.back() >= 0 && (slice.end < 0 || slice.end > open.back()))
          errors.push_back(track + ": " + slice.name + " ends after the slice that contains it");
        open.push_back(slice.end);
      }
    }
  }
};

}  // namespace nanovllm::testing
