// SPDX-License-Identifier: BSD-3-Clause
// Parses the index with an event-based JSON parser, and compares it with the files' headers.
#include "lockstep/checkpoint/safetensors/safetensors_index.h"

#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using IndexJson = nlohmann::json;

constexpr std::size_t kMostParts = 4'096;
constexpr int kMostIndexDepth = 100;
constexpr const char* kMap = "weight_map";

// A name that leads to another folder would let an index read any file.
bool is_name_in_folder(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

class IndexEvents final : public nlohmann::json_sax<IndexJson> {
 public:
  explicit IndexEvents(const std::string& file) : file_(file) {}

  bool null() override { return take_other("null"); }
  bool boolean(bool value) override { return take_other(value ? "true" : "false"); }
  bool number_integer(number_integer_t) override { return take_other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return take_other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return take_other("a number"); }
  bool binary(binary_t&) override { return take_other("binary data"); }

  bool string(string_t& value) override {
    if (!in_map_) return take_other("a string");
    if (!is_name_in_folder(value)) {
      fail(fmt::format("entry {}: its file {} is not a name in the index's folder", in_quotes(key_),
                       in_quotes(value)));
    }
    files_.insert(value);
    if (files_.size() > kMostParts) fail(fmt::format("it names more than {} files", kMostParts));
    if (!file_of_.emplace(key_, std::move(value)).second) {
      fail(fmt::format("the name {} is there twice", in_quotes(key_)));
    }
    return true;
  }

  bool key(string_t& value) override {
    if (in_map_ && value.size() > kMostNameBytes) {
      fail(fmt::format("the name {} is longer than {} bytes", in_quotes(value), kMostNameBytes));
    }
    if (in_map_ && file_of_.size() == kMostStoredTensors) {
      fail(fmt::format("it has more than {} tensors", kMostStoredTensors));
    }
    key_ = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (is_map()) {
      if (has_map_) fail("it has weight_map twice");
      has_map_ = in_map_ = true;
      ++depth_;
      return true;
    }
    return enter("an object");
  }
  bool end_object() override {
    in_map_ = false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return enter("an array"); }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    fail(fmt::format("it is not valid JSON at byte {}; copy or download it again", position));
  }

  std::map<std::string, std::string> finish() {
    if (!has_map_) {
      fail(
          "it is a text of JSON without a weight_map, so it is no index of sharded files; name "
          "the file that has the tensors");
    }
    return std::move(file_of_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}", file_, what));
  }
  // Whether the next value is the value of weight_map.
  bool is_map() const { return depth_ == 1 && key_ == kMap; }
  bool take_other(const char* value) const {
    if (in_map_) fail(fmt::format("entry {}: its file is {}, not a name", in_quotes(key_), value));
    if (is_map()) fail(fmt::format("its weight_map is {}, not an object", value));
    return true;
  }
  // Enters an object or array of a field that is not read.
  bool enter(const char* value) {
    take_other(value);
    if (++depth_ > kMostIndexDepth)
      fail(fmt::format("it is nested more than {} deep", kMostIndexDepth));
    return true;
  }

  const std::string& file_;
  int depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
  std::string key_;
  std::map<std::string, std::string> file_of_;  // ordered: no names collide
  std::set<std::string> files_;
};

// Returns text such as `"a", "b" and 3 more`.
std::string few_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMost; ++i) {
    text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  }
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// Reports all missing files at once, since somebody has to fetch them all.
void require_files(const std::set<std::string>& files, const fs::path& index) {
  std::vector<std::string> missing;
  for (const std::string& file : files) {
    std::error_code error;
    if (fs::status(index.parent_path() / file, error).type() == fs::file_type::not_found) {
      missing.push_back(file);
    }
  }
  if (missing.empty()) return;
  throw CheckpointError(
      fmt::format("{}: of the {} files that it names, {} {} missing: {}; put {} into its folder",
                  index.string(), files.size(), missing.size(), missing.size() == 1 ? "is" : "are",
                  few_of(missing), missing.size() == 1 ? "it" : "them"));
}

}  // namespace

std::map<std::string, std::string> read_safetensors_index(const StoredBytes& bytes,
                                                          const std::string& name) {
  if (bytes.size > kMostSafetensorsHeaderBytes) {
    throw CheckpointError(fmt::format("{}: it has {} bytes, and an index at most {}", name,
                                      bytes.size, kMostSafetensorsHeaderBytes));
  }
  std::string text(bytes.size, '\0');
  bytes.read(0, std::as_writable_bytes(std::span(text)));
  // The parser takes a zero byte for the end of the text.
  if (const auto zero = text.find('\0'); zero != std::string::npos) {
    throw CheckpointError(
        fmt::format("{}: it is not valid JSON at byte {}, which is zero", name, zero + 1));
  }
  IndexEvents events(name);
  IndexJson::sax_parse(text, &events);
  return events.finish();
}

std::vector<SafetensorsPart> open_safetensors_parts(const fs::path& index) {
  const auto file_of = read_safetensors_index(bytes_in_file(index), index.string());
  std::set<std::string> files;
  for (const auto& [name, file] : file_of) files.insert(file);
  require_files(files, index);
  std::vector<SafetensorsPart> parts;
  std::set<std::string_view> found;
  for (const std::string& file : files) {
    const std::string path = (index.parent_path() / file).string();
    StoredBytes bytes = bytes_in_file(path);
    SafetensorsHeader header = read_safetensors_header(bytes, path);
    parts.push_back({file, path, std::move(bytes), std::move(header)});
    for (const SafetensorsEntry& entry : parts.back().header.entries) {
      const auto named = file_of.find(entry.name);
      if (named == file_of.end() || named->second != file) {
        throw CheckpointError(fmt::format(
            "{}: {} has entry {}, which the index {}; recreate the index, or read each file by "
            "itself",
            index.string(), in_quotes(file), in_quotes(entry.name),
            named == file_of.end() ? "does not name" : "expects in " + in_quotes(named->second)));
      }
      found.insert(named->first);
    }
  }
  for (const auto& [name, file] : file_of) {
    if (found.contains(name)) continue;
    throw CheckpointError(fmt::format(
        "{}: entry {} is not in {}, where the index expects it{}; copy or download the files again",
        index.string(), in_quotes(name), in_quotes(file),
        file_of.size() - found.size() == 1
            ? ""
            : fmt::format(", nor are {} others in theirs", file_of.size() - found.size() - 1)));
  }
  return parts;
}

}  // namespace lockstep
