#include "nanovllm/text/grammar/regex/formats.h"

#include <string>

#include "nanovllm/text/grammar/regex/regex.h"

namespace nanovllm::grammar {

namespace {

std::string either(const std::string& alternatives) { return "(?:" + alternatives + ")"; }
std::string maybe(const std::string& part) { return either(part) + "?"; }

// Days of the Gregorian calendar from the year 1, as most libraries have it.
std::string date_pattern() {
  const std::string year = "(?:[1-9]\\d{3}|0[1-9]\\d\\d|00[1-9]\\d|000[1-9])";
  const std::string by_4 = "(?:0[48]|[2468][048]|[13579][26])";  // the multiples of 4 below 100
  const std::string leap_year = either("\\d\\d" + by_4 + "|" + by_4 + "00");
  const std::string days = either(
      "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|"
      "02-(?:0[1-9]|1\\d|2[0-8])");
  return either(year + "-" + days + "|" + leap_year + "-02-29");
}

// RFC 3339, but no leap seconds, since few libraries read them.
std::string time_pattern() {
  const std::string hour_minute = "(?:[01]\\d|2[0-3]):[0-5]\\d";
  return hour_minute + ":[0-5]\\d(?:\\.\\d+)?" + either("[Zz]|[+-]" + hour_minute);
}

// RFC 3339, appendix A: no unit is left out between two others, and weeks stand alone.
std::string duration_pattern() {
  const std::string minutes = "\\d+M(?:\\d+S)?", hours = "\\d+H" + maybe(minutes);
  const std::string months = "\\d+M(?:\\d+D)?", years = "\\d+Y" + maybe(months);
  const std::string time = "T" + either(hours + "|" + minutes + "|\\d+S");
  const std::string date = either(years + "|" + months + "|\\d+D");
  return "P" + either("\\d+W|" + date + maybe(time) + "|" + time);
}

// Labels of at most 63 characters (RFC 1123). The length of all together is bounded elsewhere.
std::string hostname_pattern() {
  const std::string label = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?";
  return label + either("\\." + label) + "*";
}

std::string ipv4_pattern() {
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return byte + either("\\." + byte) + "{3}";
}

// RFC 3986, IPv6address: eight groups, of which :: stands for one or more.
std::string ipv6_pattern() {
  const std::string hex = "[0-9A-Fa-f]{1,4}", group = either(hex + ":");
  const std::string last_two = either(hex + ":" + hex + "|" + ipv4_pattern());
  std::string out = group + "{6}" + last_two;
  for (int num_before = 0; num_before <= 7; ++num_before) {
    const int num_after = 7 - num_before;  // at most
    out += "|";
    if (num_before == 1) out += maybe(hex);
    if (num_before > 1) out += maybe(group + "{0," + std::to_string(num_before - 1) + "}" + hex);
    out += "::";
    if (num_after > 1) out += group + "{" + std::to_string(num_after - 2) + "}" + last_two;
    if (num_after == 1) out += hex;
  }
  return either(out);
}

// RFC 5321, section 4.1.2.
std::string email_pattern() {
  const std::string atom = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+";
  const std::string quoted = R"("(?:[ !#-\[\]-~]|\\[ -~])*")";
  return either(atom + either("\\." + atom) + "*|" + quoted) + "@" +
         either(hostname_pattern() + "|\\[" + ipv4_pattern() + "\\]|\\[IPv6:" + ipv6_pattern() +
                "\\]");
}

// RFC 3986, appendix A: a URI has a scheme.
std::string uri_pattern() {
  const std::string escape = "%[0-9A-Fa-f]{2}", plain = "0-9A-Za-z._~!$&'()*+,;=-";
  const std::string name = either("[" + plain + "]|" + escape);
  const std::string user = either("[:" + plain + "]|" + escape);
  const std::string path = either("[:@" + plain + "]|" + escape);
  const std::string more = either("[/?:@" + plain + "]|" + escape) + "*";
  const std::string future = "v[0-9A-Fa-f]+\\.[:" + plain + "]+";
  const std::string host =
      either("\\[" + either(ipv6_pattern() + "|" + future) + "\\]|" + name + "*");
  const std::string segments = either("/" + path + "*") + "*";
  return "[A-Za-z][0-9A-Za-z+.-]*:" +
         either("//" + maybe(user + "*@") + host + "(?::\\d*)?" + segments + "|/" +
                maybe(path + "+" + segments) + "|" + maybe(path + "+" + segments)) +
         maybe("\\?" + more) + maybe("#" + more);
}

}  // namespace

std::optional<Expr> format(Expressions& e, std::string_view name, Coding coding) {
  const auto regex = [&](const std::string& pattern) {
    return parse_regex(e, pattern, {coding, /*anywhere=*/false}, "format");
  };
  if (name == "date-time") return regex(date_pattern() + "[Tt]" + time_pattern());
  if (name == "date") return regex(date_pattern());
  if (name == "time") return regex(time_pattern());
  if (name == "duration") return regex(duration_pattern());
  if (name == "email") return regex(email_pattern());
  if (name == "hostname") return e.both(regex(hostname_pattern()), regex("[0-9A-Za-z.-]{1,253}"));
  if (name == "ipv4") return regex(ipv4_pattern());
  if (name == "ipv6") return regex(ipv6_pattern());
  if (name == "uuid") return regex("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}");
  if (name == "uri") return regex(uri_pattern());
  return std::nullopt;
}

}  // namespace nanovllm::grammar
