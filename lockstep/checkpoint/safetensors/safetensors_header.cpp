// SPDX-License-Identifier: BSD-3-Clause
// Parses the header with an event-based JSON parser, which sees duplicate keys, depth and counts
// before anything has been stored.
#include "lockstep/checkpoint/safetensors/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/tensor_file/other_format.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {
namespace {

using HeaderJson = nlohmann::json;

class HeaderEvents final : public nlohmann::json_sax<HeaderJson> {
 public:
  HeaderEvents(const std::string& file, SafetensorsHeader& header) : file_(file), header_(header) {}

  bool null() override {
    // Some writers write null if there is no metadata.
    const bool is_metadata = state_ == State::top && key_ == kSafetensorsMetadata;
    return is_metadata || refuse_value("null");
  }
  bool boolean(bool value) override { return refuse_value(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return refuse_value(fmt::format("{}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    constexpr std::size_t kMost = 40;
    return refuse_value(text.size() > kMost ? text.substr(0, kMost) + "..." : text);
  }
  bool binary(binary_t&) override { return refuse_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::shape && state_ != State::offsets) {
      return refuse_value(fmt::format("{}", value));
    }
    if (state_ == State::shape) {
      constexpr std::size_t kMostDimensions = 64;  // libtorch's own limit
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        refuse(fmt::format("its shape has the size {}", value));
      }
      if (entry_.shape.size() == kMostDimensions) {
        refuse(fmt::format("its shape has more than {} dimensions", kMostDimensions));
      }
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else {
      if (offsets_ == 2) refuse("its data_offsets are more than two numbers");
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header_.metadata.emplace(key_, std::move(value));
    } else if (state_ == State::entry && key_ == "dtype") {
      entry_.dtype = std::move(value);
    } else {
      return refuse_value(in_quotes(value));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::top) {
      state_ = key_ == kSafetensorsMetadata ? State::metadata : State::entry;
      entry_ = {.name = key_, .dtype = {}, .shape = {}};
      fields_.clear();
      offsets_ = 0;
    } else {
      return refuse_value("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    if (value.size() > kMostNameBytes && state_ == State::top) {
      fail(fmt::format("the name {} is longer than {} bytes", in_quotes(value), kMostNameBytes));
    }
    key_ = std::move(value);
    if (state_ == State::entry) {
      constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};
      if (std::ranges::count(kFields, key_) == 0) {
        refuse(fmt::format("it has the unknown field {}", in_quotes(key_)));
      }
      if (!fields_.insert(key_).second) refuse(fmt::format("it has {} twice", in_quotes(key_)));
    } else if (state_ == State::metadata) {
      if (header_.metadata.contains(key_)) {
        fail(fmt::format("__metadata__ has the key {} twice", in_quotes(key_)));
      }
    } else if (!names_.insert(key_).second) {
      fail(fmt::format("the name {} is there twice", in_quotes(key_)));
    } else if (header_.entries.size() == kMostStoredTensors && key_ != kSafetensorsMetadata) {
      fail(fmt::format("it has more than {} tensors", kMostStoredTensors));
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::entry) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) refuse(fmt::format("it has no {}", field));
      }
      header_.entries.push_back(std::move(entry_));
    }
    state_ = State::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::entry && key_ == "shape") {
      state_ = State::shape;
    } else if (state_ == State::entry && key_ == "data_offsets") {
      state_ = State::offsets;
    } else {
      return refuse_value("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_ < 2) refuse("its data_offsets are not two numbers");
    state_ = State::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Cut off: the parser's error code and position, and the text it read last, which may be long.
    std::string_view cause = error.what();
    cause = cause.substr(0, cause.find("; last read"));
    if (const auto colon = cause.find(": "); colon != std::string_view::npos) {
      cause.remove_prefix(colon + 2);
    }
    fail(fmt::format("its header is not valid JSON at byte {}: {}", position, in_quotes(cause)));
  }

 private:
  enum class State { start, top, entry, shape, offsets, metadata };

  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}", file_, what));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(fmt::format("entry {}: {}", in_quotes(entry_.name), what));
  }
  // Refuses a value of a kind that does not belong in this state.
  bool refuse_value(const std::string& value) const {
    switch (state_) {
      case State::start:
        fail(fmt::format("its header is {}, not an object", value));
      case State::top:
        fail(fmt::format("entry {}: it is {}, not an object", in_quotes(key_), value));
      case State::metadata:
        fail(
            fmt::format("__metadata__ has {} at the key {}, not a string", value, in_quotes(key_)));
      case State::shape:
        refuse(fmt::format("its shape has {}, not a size", value));
      case State::offsets:
        refuse(fmt::format("its data_offsets have {}, not an offset", value));
      case State::entry:
        break;
    }
    refuse(fmt::format("its {} is {}", key_, value));
  }

  const std::string& file_;
  SafetensorsHeader& header_;
  State state_ = State::start;
  std::string key_;
  SafetensorsEntry entry_;
  std::set<std::string> fields_;
  int offsets_ = 0;
  std::set<std::string> names_;  // ordered: no names collide
};

// A known type and the shape must give the number of bytes between the offsets. An element of an
// unknown type has at least one bit.
void check_entry_size(const SafetensorsEntry& entry, std::uint64_t data_bytes,
                      const std::string& file) {
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(fmt::format("{}: entry {}: {}", file, in_quotes(entry.name), what));
  };
  if (entry.begin > entry.end || entry.end > data_bytes) {
    refuse(fmt::format("its data_offsets are [{}, {}], but the data has {} bytes", entry.begin,
                       entry.end, data_bytes));
  }
  // As in libtorch, a product that overflows is refused even if another size is 0.
  std::uint64_t product = 1;
  bool empty = false;
  for (const std::int64_t size : entry.shape) {
    empty = empty || size == 0;
    const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
    if (__builtin_mul_overflow(product, factor, &product)) product = 0;
    if (product == 0 || product > (std::uint64_t{1} << 60)) {
      refuse(fmt::format("its shape {} overflows", shape_text(entry.shape)));
    }
  }
  const ElementType* type = find_safetensors_type(entry.dtype);
  if (type == nullptr) {  // only its bytes can be read
    const std::uint64_t bits = (entry.end - entry.begin) * 8;
    if (!empty && product > bits) {
      refuse(fmt::format("its data_offsets [{}, {}] are {} bytes, too few for the shape {}",
                         entry.begin, entry.end, entry.end - entry.begin, shape_text(entry.shape)));
    }
    return;
  }
  const std::uint64_t bytes = empty ? 0 : product * type->bytes;
  if (bytes != entry.end - entry.begin) {
    refuse(fmt::format("its data_offsets [{}, {}] are {} bytes, but the shape {} of {} takes {}",
                       entry.begin, entry.end, entry.end - entry.begin, shape_text(entry.shape),
                       entry.dtype, bytes));
  }
}

// The entries must fill the data without overlap or gap.
void check_order(const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                 const std::string& file) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const auto& entry : entries) sorted.push_back(&entry);
  std::ranges::sort(sorted, [](const auto* left, const auto* right) {
    return std::pair(left->begin, left->end) < std::pair(right->begin, right->end);
  });
  std::uint64_t next = 0;
  for (const SafetensorsEntry* entry : sorted) {
    if (entry->begin != next) {
      throw CheckpointError(fmt::format("{}: entry {}: its data begins at {}, {} {}", file,
                                        in_quotes(entry->name), entry->begin,
                                        entry->begin < next ? "within another entry, which ends at"
                                                            : "but the one before ends at",
                                        next));
    }
    next = entry->end;
  }
  if (next != data_bytes) {
    throw CheckpointError(fmt::format("{}: {} bytes follow the last entry, which ends at {}", file,
                                      data_bytes - next, next));
  }
}

std::string json_string(const std::string& text) {
  try {
    return HeaderJson(text).dump();
  } catch (const HeaderJson::exception&) {
    throw UsageError(
        fmt::format("{} is not UTF-8, which a safetensors file needs", in_quotes(text)));
  }
}

}  // namespace

SafetensorsHeader read_safetensors_header(const StoredBytes& bytes, const std::string& name) {
  std::array<unsigned char, 8> raw{};
  if (bytes.size < raw.size() + 2) {
    throw CheckpointError(fmt::format(
        "{}: it has {} bytes, too few for a safetensors file; copy or download it again", name,
        bytes.size));
  }
  bytes.read(0, std::as_writable_bytes(std::span(raw)));
  std::uint64_t length = 0;
  std::memcpy(&length, raw.data(), raw.size());
  if (length > kMostSafetensorsHeaderBytes || length > bytes.size - raw.size() || length < 2) {
    if (const std::string other = other_format(bytes); !other.empty()) {
      throw CheckpointError(fmt::format("{}: {}", name, other));
    }
    throw CheckpointError(fmt::format(
        "{}: its first 8 bytes announce a header of {} bytes, but the file has {} bytes, and a "
        "header at most {}: it is damaged, incomplete or no safetensors file",
        name, length, bytes.size, kMostSafetensorsHeaderBytes));
  }
  std::string text(length, '\0');
  bytes.read(raw.size(), std::as_writable_bytes(std::span(text)));
  if (text.front() != '{') {
    throw CheckpointError(fmt::format("{}: its header begins with {}, not with \"{{\"", name,
                                      in_quotes(std::string_view(text).substr(0, 1))));
  }
  // The parser takes a zero byte for the end of the text, and would skip what follows it.
  if (const auto zero = text.find('\0'); zero != std::string::npos) {
    throw CheckpointError(
        fmt::format("{}: its header is not valid JSON at byte {}, which is zero", name, zero + 1));
  }
  SafetensorsHeader header;
  header.data_offset = raw.size() + length;
  HeaderEvents events(name, header);
  HeaderJson::sax_parse(text, &events);
  if (const auto last = text.find_last_not_of(' '); text[last] != '}') {
    throw CheckpointError(
        fmt::format("{}: its header ends with {}, and only spaces may follow the "
                    "last \"}}\"",
                    name, in_quotes(std::string_view(text).substr(last, 1))));
  }
  const std::uint64_t data_bytes = bytes.size - header.data_offset;
  for (const auto& entry : header.entries) check_entry_size(entry, data_bytes, name);
  check_order(header.entries, data_bytes, name);
  return header;
}

std::string safetensors_header_text(const std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata) {
  std::string text;
  const auto append = [&](const std::string& key, const std::string& value) {
    text += fmt::format("{}{}:{}", text.empty() ? "{" : ",", json_string(key), value);
  };
  if (!metadata.empty()) {
    std::string pairs;
    for (const auto& [key, value] : metadata) {
      pairs +=
          fmt::format("{}{}:{}", pairs.empty() ? "" : ",", json_string(key), json_string(value));
    }
    append(kSafetensorsMetadata, "{" + pairs + "}");
  }
  for (const auto& entry : entries) {
    append(entry.name, fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                                   entry.dtype, shape_text(entry.shape), entry.begin, entry.end));
  }
  text += text.empty() ? "{}" : "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMostSafetensorsHeaderBytes) {
    throw UsageError(fmt::format(
        "the names and the metadata take a header of {} bytes, and safetensors files have at most "
        "{}; write several files",
        text.size(), kMostSafetensorsHeaderBytes));
  }
  return text;
}

}  // namespace lockstep
