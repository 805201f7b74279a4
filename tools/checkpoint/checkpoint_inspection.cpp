// SPDX-License-Identifier: BSD-3-Clause
// Prints a checkpoint's manifest and tensors, and compares checkpoints with their hashes.
#include "tools/checkpoint/checkpoint_inspection.h"

#include <cstdint>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/tensor_file/other_format.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "tools/checkpoint/inspection.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/text_table.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool has_manifest(const fs::path& folder) {
  return fs::exists(folder / "manifest.json") || fs::exists(folder / "manifest.json.sha256");
}

// Returns the checkpoints, newest first. UsageError if there are none.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  if (has_manifest(folder)) return {folder};
  std::vector<fs::path> found;
  for (const auto& name : checkpoint_names(folder)) found.push_back(folder / name);
  if (found.empty()) {
    const fs::path file = tensor_file_in(folder);
    throw UsageError(fmt::format(
        "{}: this folder has neither a manifest.json nor folders such as {}; give a checkpoint, "
        "the folder of --checkpoint-dir, or {}",
        folder.string(), checkpoint_name(10),
        file.empty() ? "a file of tensors"
                     : fmt::format("a file of tensors, such as {}", file.string())));
  }
  return found;
}

// Formats a field of the manifest for people.
std::string shown(const nlohmann::json& value) {
  return value.is_string() ? in_quotes(value.get<std::string>()) : value.dump();
}

std::string head_of(const fs::path& checkpoint, const nlohmann::json& manifest) {
  const auto& position = manifest.at("position");
  std::string text = fmt::format(
      "{}: checkpoint of step {}\nepoch {} (from 0), {} of {} samples\nsaved by {} rank{}, with "
      "Lockstep {} and libtorch {}\n",
      checkpoint.string(), shown(position.at("step")), shown(position.at("epoch")),
      shown(position.at("samples_consumed")), shown(position.at("samples")),
      shown(manifest.at("ranks")), manifest.at("ranks") == 1 ? "" : "s",
      shown(manifest.at("lockstep")), shown(manifest.at("libtorch")));
  const auto& score = manifest.at("score");
  text += score.is_null() ? "no score\n" : fmt::format("score {}\n", shown(score));
  for (const auto& [key, value] : position.at("notes").items()) {
    text += fmt::format("note {}: {}\n", in_quotes(key), shown(value));
  }
  for (const char* part : {"scaler", "scheduler"}) {
    const auto state = manifest.find(part);
    if (state == manifest.end()) continue;  // of an older version; null has no items
    for (const auto& [key, value] : state->items()) {
      text += fmt::format("{} {}: {}\n", part, in_quotes(key), shown(value));
    }
  }
  return text;
}

// Calls the function with the manifest. CheckpointError instead of the JSON library's errors.
template <class Function>
std::string from_manifest(const fs::path& checkpoint, const Function& function) {
  const nlohmann::json manifest = read_manifest(checkpoint);
  try {
    return function(manifest);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(
        fmt::format("{}: its manifest is incomplete: {}", checkpoint.string(), first_line(error)));
  }
}

// Opens one of the files that the manifest names.
TensorSource source_in(const fs::path& checkpoint, const std::string& name) {
  try {
    return TensorSource(checkpoint / name, "");
  } catch (const UsageError& error) {  // it is missing
    throw CheckpointError(error.details());
  }
}

std::set<std::string> files_of(const fs::path& checkpoint) {
  std::set<std::string> names;
  from_manifest(checkpoint, [&](const nlohmann::json& manifest) {
    for (const auto& [name, description] : manifest.at("files").items()) names.insert(name);
    return std::string();
  });
  return names;
}

std::string verified(const fs::path& checkpoint) {
  const StoredCheckpoint stored = read_checkpoint(checkpoint);
  std::size_t tensors = 0;
  for (const auto& [name, of_file] : stored.tensors) tensors += of_file.size();
  return fmt::format("{} files, {} tensors, nothing is wrong", stored.tensors.size(), tensors);
}

}  // namespace

fs::path find_checkpoint(const fs::path& folder) {
  return checkpoints_in(folder).front();
}

fs::path model_file(const fs::path& path) {
  return fs::is_directory(path) ? find_checkpoint(path) / "model.safetensors" : path;
}

std::vector<TensorDifference> checkpoint_differences(const fs::path& first,
                                                     const fs::path& second) {
  const fs::path one = find_checkpoint(first);
  const fs::path other = find_checkpoint(second);
  const std::set<std::string> of_one = files_of(one);
  const std::set<std::string> of_other = files_of(other);
  std::vector<TensorDifference> found;
  const auto add_file = [&](const std::string& name, TensorDifference::Kind kind) {
    found.push_back({.name = name, .kind = kind, .first = {}, .second = {}});
  };
  for (const std::string& name : of_one) {
    if (!of_other.contains(name)) {
      add_file(name, TensorDifference::Kind::missing);
      continue;
    }
    for (TensorDifference& difference : differences(source_in(one, name), source_in(other, name))) {
      difference.name = name + ": " + difference.name;
      found.push_back(std::move(difference));
    }
  }
  for (const std::string& name : of_other) {
    if (!of_one.contains(name)) add_file(name, TensorDifference::Kind::unexpected);
  }
  return found;
}

std::string checkpoint_text(const fs::path& checkpoint) {
  return from_manifest(checkpoint, [&](const nlohmann::json& manifest) {
    std::string text = head_of(checkpoint, manifest);
    std::vector<Cells> lines{{"file", "bytes", "sha256"}};
    std::string tensors;
    for (const auto& [name, description] : manifest.at("files").items()) {
      lines.push_back({in_quotes(name),
                       std::to_string(description.at("bytes").get<std::uint64_t>()),
                       description.at("sha256").get<std::string>()});
      tensors += fmt::format("\n{}\n{}", in_quotes(name),
                             InspectedTensors(source_in(checkpoint, name)).text());
    }
    return text + align_columns(lines) + tensors;
  });
}

std::string checkpoint_json(const fs::path& checkpoint) {
  return from_manifest(checkpoint, [&](const nlohmann::json& manifest) {
    Json json{{"schema_version", kSchemaVersion},
              {"versions", versions_json()},
              {"checkpoint", checkpoint.string()},
              {"manifest", Json::parse(manifest.dump())},
              {"files", Json::array()}};
    for (const auto& [name, description] : manifest.at("files").items()) {
      json["files"].push_back(
          Json{{"name", name},
               {"bytes", description.at("bytes").get<std::uint64_t>()},
               {"sha256", description.at("sha256").get<std::string>()},
               {"tensors", InspectedTensors(source_in(checkpoint, name)).json()}});
    }
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
}

std::vector<CheckpointVerdict> verify_checkpoints(const fs::path& folder) {
  std::vector<CheckpointVerdict> verdicts;
  for (const fs::path& checkpoint : checkpoints_in(folder)) {
    try {
      verdicts.push_back({checkpoint, verified(checkpoint), false});
    } catch (const CheckpointError& error) {
      if (!fs::exists(checkpoint)) continue;
      verdicts.push_back({checkpoint, fmt::format("damaged: {}", error.what()), true});
    }
  }
  return verdicts;
}

}  // namespace lockstep
